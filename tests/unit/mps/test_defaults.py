"""Settings count when the daemon says that it has them, not when a command ends well."""

import pytest

from dra_driver.model.errors import MpsError
from dra_driver.mps.defaults import SettingRefused, make, same_amount
from tests.unit.mps.node import ID, UUIDS, daemon


def answering(answers):
    """A daemon that says the same to each command, and the commands it was sent."""
    sent = []

    def ask(line):
        sent.append(line)
        return answers.get(line, "")

    return ask, sent


@pytest.mark.parametrize(
    ("asked", "shown"),
    [("2048M", "2G"), ("1024M", "1G"), ("1500M", "1500M"), ("1500M", "1.46G"), ("1500M", "1.5G"), ("1500M", "1G"),
     ("1600M", "2G"), ("2047M", "1G"), ("1G", "1024MB"), ("1048576K", "1GiB"), ("1G", "1073741824")],
)  # fmt: skip
def test_same_amount_counts_however_it_is_shown(asked, shown):
    assert same_amount(asked, shown)


@pytest.mark.parametrize(
    ("asked", "shown"),
    [("2048M", ""), ("2048M", "1G"), ("2048M", "3G"), ("2048M", "2047M"), ("2048M", "2"), ("1500M", "1.3G"),
     ("1500M", "2G"), ("1G", "1.0.0G"), ("1G", "-1G"), ("1G", "1G for all")],
)  # fmt: skip
def test_other_amount_does_not(asked, shown):
    assert not same_amount(asked, shown)


def test_settings_are_made_and_asked_for_in_order():
    ask, sent = answering(
        {
            "set_default_active_thread_percentage 25": "25.0",
            f"get_default_device_pinned_mem_limit {UUIDS[0]}": "2G",
            f"get_default_device_pinned_mem_limit {UUIDS[1]}": "500M",
        }
    )

    make(daemon(thread_percentage=25, memory_limits=((UUIDS[0], "2048M"), (UUIDS[1], "500M"))), ask)

    assert sent == [
        "set_default_active_thread_percentage 25",
        f"set_default_device_pinned_mem_limit {UUIDS[0]} 2048M",
        f"get_default_device_pinned_mem_limit {UUIDS[0]}",
        f"set_default_device_pinned_mem_limit {UUIDS[1]} 500M",
        f"get_default_device_pinned_mem_limit {UUIDS[1]}",
    ]


def test_nothing_is_asked_of_a_daemon_without_settings():
    ask, sent = answering({})

    make(daemon(), ask)

    assert sent == []


@pytest.mark.parametrize(("percentage", "answer"), [(0, "100.0"), (100, "100.0"), (7, "7")])
def test_percentage_counts_by_what_the_command_prints(percentage, answer):
    ask, _ = answering({f"set_default_active_thread_percentage {percentage}": answer})

    make(daemon(thread_percentage=percentage), ask)


@pytest.mark.parametrize("answer", ["100.0", "", "Insufficient privileges for UID 1000", "25.0\n25.0"])
def test_percentage_that_was_not_taken_names_setting_and_answer(answer):
    ask, _ = answering({"set_default_active_thread_percentage 25": answer})

    with pytest.raises(SettingRefused) as raised:
        make(daemon(thread_percentage=25), ask)

    said = f'it says "{" ".join(answer.split())}"' if answer else "it says nothing"
    assert str(raised.value) == (
        f'MPS daemon {ID}: "set_default_active_thread_percentage 25" was not taken: {said} where 25.0 is expected'
    )


def test_limit_that_was_not_taken_names_device_and_amount():
    ask, _ = answering({})

    with pytest.raises(MpsError, match=f"limit {UUIDS[1]} 2048M.* it says nothing where 2048M is expected"):
        make(daemon(memory_limits=((UUIDS[1], "2048M"),)), ask)
