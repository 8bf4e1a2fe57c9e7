import json

import pytest

from dra_driver.claims.store import Store
from dra_driver.commands.main import main
from dra_driver.model.claims import ClaimRef
from dra_driver.model.plan import Plan, PreparedDevice
from dra_driver.model.records import ClaimRecord, ClaimState

RECORD = ClaimRecord(
    claim=ClaimRef("team-a", "trainer", "0f8c"),
    state=ClaimState.COMPLETED,
    prepared_at=1767225600.0,
    plan=Plan(
        devices=(
            PreparedDevice(
                requests=("gpu",),
                pool="node-a",
                device="gpu-0",
                uuid="GPU-0",
                gpu_uuid="GPU-0",
                cdi_ids=("k8s.gpu.nvidia.com/claim=0f8c-gpu-0",),
                sharing='{"strategy":"TimeSlicing"}',
                time_slice=3,
            ),
        )
    ),
)


@pytest.fixture
def plugins(tmp_path):
    (tmp_path / "gpu.nvidia.com").mkdir()
    return tmp_path


@pytest.fixture
def store(plugins):
    opened = Store.open(plugins / "gpu.nvidia.com" / "state.db")
    yield opened
    opened.close()


def status(plugins, *more):
    return main(["status", "--kubelet-plugins-directory-path", str(plugins), *more])


def test_json_has_claims_and_their_devices(plugins, store, capsys):
    store.put(RECORD)

    assert status(plugins, "-o", "json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "claims": [
            {
                "namespace": "team-a",
                "name": "trainer",
                "uid": "0f8c",
                "state": "completed",
                "preparedAt": "2026-01-01T00:00:00Z",
                "devices": [
                    {
                        "requests": ["gpu"],
                        "pool": "node-a",
                        "device": "gpu-0",
                        "uuid": "GPU-0",
                        "gpuUuid": "GPU-0",
                        "cdiDevices": ["k8s.gpu.nvidia.com/claim=0f8c-gpu-0"],
                        "adminAccess": False,
                        "shareId": None,
                        "sharing": '{"strategy":"TimeSlicing"}',
                        "timeSlice": 3,
                        "mpsDaemon": None,
                    }
                ],
            }
        ]
    }


def test_the_table_has_a_row_for_each_device(plugins, store, capsys):
    store.put(RECORD)

    assert status(plugins) == 0
    row = capsys.readouterr().out.splitlines()[1].split()
    assert row[:6] == ["team-a/trainer", "0f8c", "completed", "2026-01-01T00:00:00Z", "gpu", "gpu-0"]


def test_no_prepared_claim_is_said_and_is_no_failure(plugins, store, capsys):
    assert status(plugins) == 0
    assert capsys.readouterr().out == "No claim is prepared on this node.\n"


def test_missing_records_fail_and_name_the_path(plugins, capsys):
    assert status(plugins) == 1
    captured = capsys.readouterr()
    assert str(plugins / "gpu.nvidia.com" / "state.db") in captured.err
    assert captured.out == ""


def test_damaged_records_fail_with_one_line(plugins, capsys):
    (plugins / "gpu.nvidia.com" / "state.db").write_bytes(b"garbage" * 100)

    assert status(plugins) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_a_state_directory_is_taken(plugins, store, capsys):
    assert main(["status", "--state-dir", str(plugins / "gpu.nvidia.com")]) == 0


def test_nothing_is_written(plugins, store, capsys):
    store.put(RECORD)
    store.close()
    before = {path.name: path.read_bytes() for path in (plugins / "gpu.nvidia.com").glob("state.db")}

    status(plugins)

    assert {path.name: path.read_bytes() for path in (plugins / "gpu.nvidia.com").glob("state.db")} == before
