"""``dra-driver demo`` as a person runs it: a process that starts everything, checks it, and leaves nothing behind."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Json = dict[str, Any]
SECONDS = 100
pytestmark = pytest.mark.timeout(2 * SECONDS)

REFUSAL = "error validating GPU config: unknown GPU sharing strategy: TimeSlicing"


def command(*flags: str) -> list[str]:
    return [sys.executable, "-m", "dra_driver", "demo", *flags]


def environment(directory: Path) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(directory)}


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    """Where demos put their directories; short, since sockets are made inside."""
    with tempfile.TemporaryDirectory(prefix="dra-test-") as name:
        yield Path(name)


@pytest.fixture(scope="module")
def played(directory: Path) -> Json:
    done = subprocess.run(
        command("-o", "json"), env=environment(directory), capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.stderr == ""
    assert done.returncode == 0
    parsed: Json = json.loads(done.stdout)
    return parsed


def pods(played: Json, letter: str) -> list[Json]:
    found: list[Json] = scene(played, letter)["pods"]
    return found


def scene(played: Json, letter: str) -> Json:
    (found,) = [s for s in played["scenes"] if s["name"].startswith(f"{letter}-")]
    assert isinstance(found, dict)
    return found


def uuids(entries: list[Json]) -> set[str]:
    assert all(entry["gpu_uuid"].startswith("GPU-") for entry in entries)
    return {entry["gpu_uuid"] for entry in entries}


def test_demo_prints_the_documented_shape(played: Json) -> None:
    assert set(played) == {"scenes", "ok"}
    assert all(set(s) == {"name", "pods", "event", "ok"} for s in played["scenes"])
    keys = {"name", "container", "claim", "request", "gpu_uuid", "cdi_devices"}
    assert all(set(pod) == keys for s in played["scenes"] for pod in s["pods"])


def test_every_scene_is_right(played: Json) -> None:
    assert [s["ok"] for s in played["scenes"]] == [True] * 5
    assert played["ok"] is True


def test_pods_that_share_a_claim_get_the_same_gpu_and_cdi_device(played: Json) -> None:
    first, second = pods(played, "a")
    assert first["name"] != second["name"]
    assert (first["gpu_uuid"], first["cdi_devices"]) == (second["gpu_uuid"], second["cdi_devices"])


def test_two_requests_share_two_gpus_pairwise(played: Json) -> None:
    entries = pods(played, "b")
    left = uuids([e for e in entries if e["request"] == "left"])
    right = uuids([e for e in entries if e["request"] == "right"])
    assert (len(entries), len(left), len(right), left & right) == (4, 1, 1, set())


def test_pods_of_a_template_get_a_gpu_each(played: Json) -> None:
    entries = pods(played, "c")
    assert (len({e["claim"] for e in entries}), len(uuids(entries))) == (2, 2)


def test_gate_off_gives_the_event_that_guides_quote_and_then_the_remedy(played: Json) -> None:
    found = scene(played, "d")
    assert "TimeSlicingSettings=true" in found["event"].partition(REFUSAL)[2]
    assert [(e["gpu_uuid"], e["cdi_devices"]) for e in found["pods"]] == [(None, []), (None, [])]


def test_demo_leaves_nothing_behind(played: Json, directory: Path) -> None:
    assert list(directory.iterdir()) == []


BROKEN_TOOL = """
driver: {version: 580.159.04, cuda: "13.0"}
gpus:
  - {count: 2, productName: NVIDIA H200, architecture: Hopper, cudaComputeCapability: "9.0", memoryBytes: 150754820096}
tool:
  behaviours:
    - {command: set-timeslice, exitCode: 1, stderr: broken}
"""


def test_scene_that_is_not_right_ends_with_exit_code_1(directory: Path, tmp_path: Path) -> None:
    scenario = tmp_path / "broken.yaml"
    scenario.write_text(BROKEN_TOOL)
    done = subprocess.run(
        command("-o", "json", "--simulated-node", str(scenario), "--timeout", "8"),
        env=environment(directory),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 1
    parsed = json.loads(done.stdout)
    assert (parsed["ok"], parsed["scenes"][0]["ok"]) == (False, False)
    assert "a-shared-claim: " in done.stderr


def wait_until(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def drivers(directory: Path) -> list[int]:
    """Processes of drivers that work below a directory."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"--cdi-root={directory}/" in (entry / "cmdline").read_text():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL], ids=lambda n: n.name)
def test_interrupted_demo_takes_its_driver_along(tmp_path_factory: pytest.TempPathFactory, number: int) -> None:
    with tempfile.TemporaryDirectory(prefix="dra-test-") as name:
        directory = Path(name)
        demo = subprocess.Popen(
            command(), env=environment(directory), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            wait_until(lambda: drivers(directory))
            demo.send_signal(number)
            demo.wait(SECONDS)
        finally:
            demo.kill()
            demo.wait()
        wait_until(lambda: not drivers(directory))
        left = list(directory.iterdir())
        assert number == signal.SIGKILL or left == []
