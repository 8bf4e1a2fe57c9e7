import logging
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from dra_driver.devices.discovery import Discovery, Pace
from dra_driver.devices.simulated import SimulatedNode
from dra_driver.model.devices import ComputeMode, Inventory
from dra_driver.model.errors import DriverAbsent, DriverNotReady

H200 = SimulatedNode.load("h200x2").source().scan()
MIG = SimulatedNode.load("a100x8-mig").source().scan()
NONE = Inventory(driver=H200.driver)
ABSENT = DriverAbsent("libnvidia-ml.so.1 cannot be loaded")
HANGS = DriverNotReady("NVML does not list the GPUs: no answer within 60 s")
QUICK = Pace(interval=0.01, first=0.001, longest=0.01)
BUS = ("0000:00:06.0", "0000:00:07.0")
ON_BUS = " (on the PCI bus: 0000:00:06.0, 0000:00:07.0)"


class Source:
    """Answers one after another; the last one for ever. bus: what the machine has."""

    def __init__(self, *answers: Inventory | Exception) -> None:
        self.answers = list(answers)
        self.scans = 0
        self.bus: tuple[str, ...] | None = BUS

    def on_bus(self) -> tuple[str, ...] | None:
        return self.bus

    def scan(self) -> Inventory:
        answer = self.answers[min(self.scans, len(self.answers) - 1)]
        self.scans += 1
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        pass


class Observed:
    """Readiness, events and listener of a Discovery over given answers."""

    def __init__(self, *answers: Inventory | Exception, pace: Pace = QUICK) -> None:
        self.conditions: list[tuple[bool, str]] = []
        self.events: list[tuple[str, str]] = []
        self.offered: list[Inventory | None] = []
        self.offer: Callable[[Inventory | None], None] = self.offered.append
        self.source = Source(*answers)
        self.now = 0.0
        self.discovery = Discovery(self.source, self, self._hand_on, self, pace, lambda: self.now)

    def _hand_on(self, found: Inventory | None) -> None:
        self.offer(found)

    def set(self, condition: str, ok: bool, message: str = "") -> None:
        assert condition == "devices"
        self.conditions.append((ok, message))

    def warning(self, reason: str, message: str) -> None:
        self.events.append((reason, message))

    def normal(self, reason: str, message: str) -> None:
        raise AssertionError(reason, message)

    def look(self, times: int, seconds: float = 0.0) -> list[bool]:
        """Look so often, and let so much time pass after each."""
        found = []
        for _ in range(times):
            found.append(self.discovery.look())
            self.now += seconds
        return found


def with_uuid(inventory: Inventory, position: int, uuid: str) -> Inventory:
    gpus = list(inventory.gpus)
    gpus[position] = replace(gpus[position], uuid=uuid)
    return replace(inventory, gpus=tuple(gpus))


def test_first_gpus_are_offered_and_the_condition_holds() -> None:
    seen = Observed(H200)
    assert seen.look(1) == [True]
    assert seen.offered == [H200]
    assert seen.conditions == [(True, "")]


def test_who_asked_is_called_at_the_end_of_each_look_whatever_it_found() -> None:
    seen = Observed()
    offered: list[list[Inventory | None]] = []
    source = Source(ABSENT, H200, H200)
    discovery = Discovery(source, seen, seen.offered.append, on_look=lambda: offered.append([*seen.offered]))
    for _ in range(3):
        discovery.look()
    assert offered == [[], [H200], [H200]]


def test_who_asked_may_fail_and_is_called_again() -> None:
    calls: list[int] = []

    def fail() -> None:
        calls.append(1)
        raise ZeroDivisionError

    seen = Observed()
    discovery = Discovery(Source(H200), seen, seen.offered.append, on_look=fail)
    assert [discovery.look(), discovery.look()] == [True, True]
    assert len(calls) == 2


def test_gpus_of_a_driver_that_is_loaded_late_are_offered_and_nothing_before() -> None:
    seen = Observed(ABSENT, ABSENT, NONE, H200)
    assert seen.look(4, seconds=7) == [False, False, False, True]
    assert seen.offered == [H200]
    assert [ok for ok, _ in seen.conditions] == [False, False, False, True]
    assert seen.events == []


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (ABSENT, "libnvidia-ml.so.1 cannot be loaded"),
        (NONE, "no GPU is bound to the NVIDIA driver"),
        (HANGS, "NVML does not list the GPUs: no answer within 60 s"),
        (ZeroDivisionError("!"), "looking for GPUs failed, see the log"),
    ],
    ids=["no-driver", "no-card", "hangs", "unforeseen"],
)
def test_reason_and_what_is_on_the_bus_are_told_while_there_is_no_gpu(answer: Inventory | Exception, why: str) -> None:
    seen = Observed(answer)
    seen.look(1)
    assert seen.conditions == [(False, f"{why}{ON_BUS}; looking again")]
    assert seen.discovery.complaint == f"{why}{ON_BUS}; looking again"


def test_cause_is_logged_once_per_change(caplog: pytest.LogCaptureFixture) -> None:
    Observed(ABSENT, ABSENT, NONE, NONE, ABSENT).look(5)
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 3


# Slices of an earlier driver promise GPUs: when are they withdrawn?


@pytest.mark.parametrize(
    ("answer", "offered"), [(ABSENT, None), (NONE, NONE), (HANGS, None)], ids=["no-driver", "no-card", "hangs"]
)
def test_gpus_that_do_not_come_are_withdrawn_once_after_the_grace(
    answer: Inventory | Exception, offered: Inventory | None
) -> None:
    seen = Observed(answer)
    seen.look(6, seconds=5)
    assert seen.offered == []
    seen.look(3, seconds=5)
    assert seen.offered == [offered]
    assert seen.conditions[-1][0] is False
    assert seen.conditions[-1][1].endswith("; looking again; nothing is offered")
    [(reason, message)] = seen.events
    assert reason == "GPUsWithdrawn"
    assert "0000:00:06.0" in message


def test_gpus_are_not_withdrawn_for_two_looks_however_far_apart() -> None:
    seen = Observed(ABSENT)
    seen.look(2, seconds=3600)
    assert seen.offered == []
    seen.look(1)
    assert seen.offered == [None]


def test_grace_begins_anew_after_gpus_were_seen() -> None:
    seen = Observed(H200, ABSENT, ABSENT, H200, ABSENT, ABSENT, H200)
    seen.look(7, seconds=20)
    assert seen.offered == [H200]


@pytest.mark.parametrize("answer", [ABSENT, NONE, HANGS], ids=["no-driver", "no-card", "hangs"])
def test_node_that_never_had_a_gpu_is_ready_at_once_and_withdraws_what_was_promised(
    answer: Inventory | Exception, caplog: pytest.LogCaptureFixture
) -> None:
    seen = Observed(answer)
    seen.source.bus = ()
    assert seen.look(5) == [False] * 5
    assert seen.offered == [answer if isinstance(answer, Inventory) else None]
    told = (True, "this node has no NVIDIA GPU: nothing is offered; looking again now and then")
    assert seen.conditions == [told] * 5
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert seen.events == []


def test_bus_that_cannot_be_read_is_no_proof_that_there_is_no_gpu() -> None:
    seen = Observed(ABSENT)
    seen.source.bus = None
    seen.look(3)
    assert seen.conditions[-1] == (False, "libnvidia-ml.so.1 cannot be loaded; looking again")
    assert seen.offered == []


def test_gpu_that_is_plugged_into_a_node_without_any_is_offered() -> None:
    seen = Observed(ABSENT, H200)
    seen.source.bus = ()
    assert seen.look(2) == [False, True]
    assert seen.offered == [None, H200]
    assert seen.conditions[-1] == (True, "")


def test_withdrawal_that_was_not_taken_is_offered_again() -> None:
    seen = Observed(ABSENT)
    seen.source.bus = ()

    def refuse(_: Inventory | None) -> None:
        raise RuntimeError("no")

    take, seen.offer = seen.offer, refuse
    seen.look(1)
    seen.offer = take
    seen.look(2)
    assert seen.offered == [None]


# GPUs were seen, and are seen no more.


def test_driver_that_is_unloaded_keeps_the_inventory_for_the_grace_only() -> None:
    seen = Observed(H200, ABSENT)
    seen.look(6, seconds=5)
    assert seen.offered == [H200]
    assert "the last inventory is kept" in seen.conditions[-1][1]
    seen.look(3, seconds=5)
    assert seen.offered == [H200, None]
    assert seen.conditions[-1][0] is False


def test_same_gpus_are_offered_anew_after_they_were_withdrawn() -> None:
    seen = Observed(H200, ABSENT, ABSENT, ABSENT, H200)
    assert seen.look(5, seconds=20) == [True, False, False, False, True]
    assert seen.offered == [H200, None, H200]
    assert seen.conditions[-1] == (True, "")
    assert seen.discovery.complaint is None


def test_gpus_that_nvml_is_too_busy_to_show_stay_on_offer() -> None:
    seen = Observed(H200, HANGS)
    seen.look(50, seconds=60)
    assert seen.offered == [H200]
    assert seen.conditions[-1] == (False, f"{HANGS}{ON_BUS}; looking again (the last inventory is kept)")


def test_node_that_loses_all_gpus_withdraws_them_after_the_grace_and_is_not_ready() -> None:
    seen = Observed(H200, NONE)
    seen.look(8, seconds=10)
    assert seen.offered == [H200, NONE]
    assert seen.conditions[-1][0] is False


@pytest.mark.parametrize("answer", [ABSENT, NONE, HANGS], ids=["no-driver", "no-card", "hangs"])
def test_gpus_that_are_off_the_bus_are_withdrawn_at_once_and_the_node_is_not_ready(
    answer: Inventory | Exception,
) -> None:
    seen = Observed(H200, answer)
    seen.look(1)
    seen.source.bus = ()
    seen.look(3)
    assert seen.offered == [H200, answer if isinstance(answer, Inventory) else None]
    assert seen.conditions[-1][0] is False
    assert "none on the PCI bus any more" in seen.conditions[-1][1]


def test_same_inventory_is_offered_once() -> None:
    seen = Observed(H200)
    seen.look(3)
    assert seen.offered == [H200]


def test_compute_mode_that_changed_is_no_new_inventory() -> None:
    gpus = tuple(replace(gpu, compute_mode=ComputeMode.PROHIBITED) for gpu in H200.gpus)
    seen = Observed(H200, replace(H200, gpus=gpus))
    seen.look(2)
    assert seen.offered == [H200]
    assert seen.discovery.inventory == replace(H200, gpus=gpus)


def test_gpu_that_drops_out_is_offered_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    one = replace(H200, gpus=H200.gpus[1:])
    seen = Observed(H200, one)
    seen.look(2)
    assert seen.offered == [H200, one]
    assert "no longer on offer: gpu-0" in caplog.text


def test_mig_layout_that_changed_is_offered() -> None:
    fewer = replace(MIG, mig_devices=MIG.mig_devices[:-1])
    seen = Observed(MIG, fewer)
    seen.look(2)
    assert seen.offered == [MIG, fewer]


def test_gpus_in_mig_mode_without_mig_devices_are_a_condition() -> None:
    seen = Observed(replace(MIG, mig_devices=()))
    seen.look(1)
    assert seen.conditions == [(False, "every GPU is in MIG mode and none has a MIG device")]


def test_scan_that_fails_later_keeps_the_inventory() -> None:
    seen = Observed(H200, ABSENT)
    assert seen.look(2) == [True, False]
    assert seen.discovery.inventory == H200
    assert seen.offered == [H200]
    assert "the last inventory is kept" in seen.conditions[-1][1]


def test_condition_holds_again_after_a_scan_that_failed() -> None:
    seen = Observed(H200, ABSENT, H200)
    seen.look(3)
    assert [ok for ok, _ in seen.conditions] == [True, False, True]


def test_uuid_that_changed_behind_a_name_is_an_event() -> None:
    seen = Observed(H200, with_uuid(H200, 1, "GPU-other"))
    seen.look(2)
    [(reason, message)] = seen.events
    assert reason == "GPUReplaced"
    assert "gpu-1 is now GPU-other" in message
    assert H200.gpus[1].uuid in message


def test_minors_that_were_swapped_are_two_events() -> None:
    first, second = H200.gpus
    swapped = replace(H200, gpus=(replace(first, minor=1), replace(second, minor=0)))
    seen = Observed(H200, swapped)
    seen.look(2)
    assert [message.split()[1] for _, message in seen.events] == ["gpu-0", "gpu-1"]


def test_gpu_that_drops_out_is_no_replacement() -> None:
    seen = Observed(H200, replace(H200, gpus=H200.gpus[1:]))
    seen.look(2)
    assert seen.events == []


def test_inventory_that_was_not_taken_is_offered_again() -> None:
    seen = Observed(H200)

    def refuse(_: Inventory | None) -> None:
        raise RuntimeError("no")

    take, seen.offer = seen.offer, refuse
    assert seen.look(1) == [False]
    seen.offer = take
    assert seen.look(1) == [True]
    assert seen.offered == [H200]


def test_failure_nobody_foresaw_does_not_end_the_looking() -> None:
    seen = Observed(ZeroDivisionError("!"), H200)
    assert seen.look(2) == [False, True]


def test_thread_looks_until_there_are_gpus_and_can_be_stopped() -> None:
    seen, found = Observed(ABSENT, NONE, H200), threading.Event()
    seen.offer = lambda _: found.set()
    seen.discovery.start()
    assert found.wait(10)
    seen.discovery.stop()
    scans = seen.source.scans
    assert not any(thread.name == "discovery" for thread in threading.enumerate())
    assert seen.source.scans == scans


def test_thread_does_not_look_again_at_once_when_gpus_are_known() -> None:
    seen = Observed(H200, pace=Pace(interval=60))
    seen.discovery.look()
    seen.discovery.start()
    seen.discovery.stop()
    assert seen.source.scans == 1


def test_stopping_twice_and_before_the_start_is_harmless() -> None:
    seen = Observed(H200)
    seen.discovery.stop()
    seen.discovery.stop()
    seen.discovery.start()
    seen.discovery.stop()
    assert seen.source.scans == 0


@pytest.mark.parametrize(
    ("answers", "waits"),
    [
        ((ABSENT,), [0.0, 1, 2, 4, 8, 8]),
        ((NONE, H200), [0.0, 1, 30, 30, 30, 30]),
        ((H200, ABSENT, ABSENT, H200), [0.0, 30, 1, 2, 30, 30]),
    ],
    ids=["never-there", "there-at-the-second-look", "lost-for-a-while"],
)
def test_waits_double_while_there_is_nothing_and_start_anew(
    answers: tuple[Inventory | Exception, ...], waits: list[float]
) -> None:
    seen, asked = Observed(*answers, pace=Pace(interval=30, first=1, longest=8)), []

    class Wake(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            asked.append(timeout)
            seen.discovery._stopping = len(asked) == len(waits)
            return True

    seen.discovery._wake = Wake()
    seen.discovery._run()
    assert asked == waits
