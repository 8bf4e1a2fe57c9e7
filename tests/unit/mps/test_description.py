"""daemon.json: what is written is read, and nothing else."""

import json

import pytest

from dra_driver.model.errors import MpsError
from dra_driver.mps.description import Description, checked_id, decode, is_id
from tests.unit.mps.node import ID, UUIDS, daemon

WHOLE = daemon(
    gpus=UUIDS[:1], thread_percentage=0, memory_limits=((UUIDS[0], "1024M"), (UUIDS[1], "2G")), multi_user=True
)


@pytest.mark.parametrize(
    "wanted",
    [
        daemon(),
        WHOLE,
        daemon(devices=("MIG-6ed4e2e6-aaaa-5555-8888-111111111111",)),
        # The most that a quantity of Kubernetes can be.
        daemon(memory_limits=((UUIDS[0], f"{(2**63 - 1) >> 20}M"),)),
    ],
)
def test_what_is_written_is_read(wanted):
    described = Description(wanted, "deployment", True)

    assert decode(described.encode(), ID) == described


@pytest.mark.parametrize(
    "text",
    [
        "",
        "..",
        "../x-abcde",
        "a/b-abcde",
        "-abcde",
        "uid-ABCDE",
        "uid-abcd",
        "uid",
        "uid-abcde\n",
        "u.d-abcde",
        "x" * 99,
    ],
)
def test_text_that_is_no_id_is_refused(text):
    assert not is_id(text)
    with pytest.raises(MpsError, match="not an id of the form"):
        checked_id(text)


def test_id_is_a_claim_and_five_digits():
    assert checked_id(ID) == ID


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"devices": ["GPU-1\nquit"]}, r"'GPU-1\\nquit' is not of the form"),
        ({"devices": 3}, "damaged: TypeError"),
        ({"gpus": ["0"]}, "'0' is not of the form"),
        ({"memory_limits": [[UUIDS[0], "1M 2"]]}, "'1M 2' is not of the form"),
        ({"memory_limits": [["0", "1M"]]}, "'0' is not of the form"),
        ({"memory_limits": [1]}, "damaged: TypeError"),
        ({"thread_percentage": 101}, "101 is not a percentage from 0 to 100"),
        ({"thread_percentage": "x"}, "damaged: ValueError"),
        ({"thread_percentage": float("inf")}, "damaged: ValueError"),
        ({"thread_percentage": 25.5}, "damaged: ValueError"),
        ({"id": "other-abcde"}, "that of 'other-abcde'"),
    ],
)
def test_description_with_a_wrong_value_is_refused_naming_it(change, said):
    raw = json.loads(Description(WHOLE, "process", False).encode()) | change

    with pytest.raises(MpsError, match=f"^MPS daemon {ID}: .*{said}"):
        decode(json.dumps(raw).encode(), ID)


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b"[]", b"{}", b'{"id": 3}'])
def test_text_that_is_no_description_is_damaged(text):
    with pytest.raises(MpsError, match=f"MPS daemon {ID}: its description is damaged"):
        decode(text, ID)


@pytest.mark.parametrize("missing", ["id", "devices", "launcher", "mounted"])
def test_description_that_lacks_something_is_refused_naming_it(missing):
    raw = json.loads(Description(WHOLE, "process", False).encode())
    del raw[missing]

    with pytest.raises(MpsError, match=f"damaged: KeyError: '{missing}'"):
        decode(json.dumps(raw).encode(), ID)


def test_value_that_would_not_be_read_is_not_written():
    with pytest.raises(MpsError, match="is not of the form"):
        Description(daemon(memory_limits=((UUIDS[0], "lots"),)), "process", False).encode()
