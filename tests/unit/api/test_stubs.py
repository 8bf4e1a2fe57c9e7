"""The committed stubs against a fresh run of their generator, as ``make stubs`` runs it."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "hack/codegen/stubs.py"
COMMITTED = ROOT / "api/dra_driver_api/kubelet"


def run(*arguments: str, script: Path = SCRIPT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(script), *arguments], capture_output=True, text=True, timeout=50, check=False
    )


def generated(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.glob("*_pb2*.py*")}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the generator and of what it reads, to spoil."""
    for source in (SCRIPT, *COMMITTED.glob("*.proto"), *COMMITTED.glob("*_pb2*.py*")):
        target = tmp_path / source.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(source.read_bytes())
    return tmp_path


def test_committed_stubs_are_up_to_date(tmp_path: Path) -> None:
    assert run("--output", str(tmp_path)).returncode == 0
    assert generated(COMMITTED) == generated(tmp_path / "dra_driver_api/kubelet")


def test_check_agrees_with_committed_stubs() -> None:
    done = run("--check")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["dra_pb2.py", "dra_pb2.pyi", "dra_pb2_grpc.py", "dra_pb2_grpc.pyi", "old_pb2.py"])
def test_check_names_a_file_that_differs(checkout: Path, name: str) -> None:
    stale = checkout / "api/dra_driver_api/kubelet" / name
    stale.write_text("# stale\n")
    done = run("--check", script=checkout / "hack/codegen/stubs.py")
    assert done.returncode == 1
    assert done.stderr.startswith(f"dra_driver_api/kubelet/{name} is out of date, run: make stubs\n")
    assert stale.read_text() == "# stale\n"


def test_generator_fails_on_a_proto_file_that_is_wrong(checkout: Path) -> None:
    proto = checkout / "api/dra_driver_api/kubelet/dra.proto"
    proto.write_text(proto.read_text() + "message Claim {}\n")
    done = run(script=checkout / "hack/codegen/stubs.py")
    assert done.returncode == 2
    assert '"Claim" is already defined' in done.stderr
