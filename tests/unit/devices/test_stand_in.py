"""The stand-in nvidia-smi as a program: how it is started, and what it answers."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from dra_driver.devices import stand_in
from dra_driver.devices.scenario import Tool
from dra_driver.devices.simulated import SimulatedNode


class Smi:
    """The nvidia-smi of a node with two H200."""

    def __init__(self, root: Path, tool: Tool, python: str = "") -> None:
        node = SimulatedNode.load("h200x2")
        node.materialise(root)
        self.uuids = [gpu.uuid for gpu in node.source().scan().gpus]
        self.path = root / "usr/bin/nvidia-smi"
        self.path.write_text(stand_in.script(tool, self.uuids, python))

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([self.path, *arguments], capture_output=True, text=True, timeout=10, check=False)


@pytest.fixture
def smi(tmp_path: Path) -> Smi:
    return Smi(tmp_path, Tool())


def test_tool_runs_where_there_is_no_shell_and_nothing_is_on_the_path(smi: Smi) -> None:
    line = smi.path.read_text().splitlines()[0]
    assert line.startswith("#!")
    assert shlex.split(line[2:]) == [str(Path(sys.executable).resolve()), "-IS"]
    with_nothing = subprocess.run(
        [smi.path, "-L"], env={}, cwd=smi.path.parent, capture_output=True, text=True, timeout=10, check=True
    )
    assert smi.uuids[1] in with_nothing.stdout


@pytest.mark.parametrize("folder", ["with blanks", "long" * 60], ids=["blanks", "long"])
def test_tool_runs_with_an_interpreter_whose_path_no_kernel_takes(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir()
    python = tmp_path / folder / "python"
    python.symlink_to(sys.executable)
    smi = Smi(tmp_path / "root", Tool(), str(python))
    assert smi.run("compute-policy", "-i", smi.uuids[0], "--set-timeslice", "2").returncode == 0
    assert "Medium" in smi.run("compute-policy", "-i", smi.uuids[0], "-l").stdout


def test_slice_of_one_gpu_is_listed_alone(smi: Smi) -> None:
    rows = smi.run("compute-policy", "-l", f"--id={smi.uuids[1]}").stdout.splitlines()[4:-1]
    assert rows == ["|   1   Timeslice       Default       |"]


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ("", 2, "Only compute-policy and -L work here"),
        ("-q", 2, "Only compute-policy and -L work here"),
        ("compute-policy", 2, "nothing to do"),
        ("compute-policy --frobnicate", 2, 'Option "--frobnicate" is not recognized'),
        ("compute-policy --set-timeslice 1", 2, "a GPU is needed"),
        ("compute-policy -i {gpu} --set-timeslice 4", 2, 'Timeslice "4" is not valid'),
        ("compute-policy -i {gpu} --set-timeslice", 2, 'Timeslice "" is not valid'),
        ("compute-policy -i GPU-nowhere -l", 6, "No devices were found"),
    ],
)
def test_call_that_cannot_be_carried_out_ends_with_the_code_of_the_manual(
    smi: Smi, arguments: str, code: int, text: str
) -> None:
    done = smi.run(*arguments.format(gpu=smi.uuids[0]).split())
    assert (done.returncode, done.stdout) == (code, "")
    assert text in done.stderr


def test_argument_that_is_no_text_is_logged_byte_for_byte(smi: Smi) -> None:
    subprocess.run([bytes(smi.path), b"\xff"], capture_output=True, timeout=10, check=False)
    assert (smi.path.parents[2] / "var/log/nvidia-smi.calls").read_bytes() == b"\xff\n"


def test_slice_that_cannot_be_kept_is_a_failure_naming_the_file(smi: Smi) -> None:
    kept = smi.path.parents[2] / "var/state" / smi.uuids[0] / "time_slice"
    kept.unlink()
    kept.mkdir()
    done = smi.run("compute-policy", "-i", smi.uuids[0], "--set-timeslice", "1")
    assert (done.returncode, done.stdout) == (1, "")
    assert str(kept) in done.stderr


@pytest.mark.parametrize(("signal", "number"), [("SEGV", 11), ("KILL", 9), ("TERM", 15), ("ABRT", 6), ("BUS", 7)])
def test_what_was_said_before_a_death_by_signal_is_not_lost(tmp_path: Path, signal: str, number: int) -> None:
    behaviour = {"signal": signal, "stdout": "one", "stderr": "two"}
    smi = Smi(tmp_path, Tool.model_validate({"behaviours": [behaviour]}))
    done = smi.run("compute-policy", "-i", smi.uuids[0], "--set-timeslice", "1")
    assert (done.returncode, done.stdout, done.stderr) == (-number, "one\n", "two\n")


def test_first_behaviour_that_fits_is_carried_out(tmp_path: Path) -> None:
    behaviours = [
        {"command": "list", "exitCode": 3},
        {"gpu": 1, "exitCode": 4},
        {"calls": [2], "exitCode": 5},
        {"exitCode": 6},
    ]
    smi = Smi(tmp_path, Tool.model_validate({"behaviours": behaviours}))
    codes = [smi.run("compute-policy", "-i", uuid, "--set-timeslice", "1").returncode for uuid in smi.uuids]
    again = smi.run("compute-policy", "-i", smi.uuids[0], "--set-timeslice", "1").returncode
    assert (codes, again, smi.run("compute-policy", "-l").returncode) == ([6, 4], 5, 3)


def test_megabytes_are_as_many_as_the_scenario_says(tmp_path: Path) -> None:
    smi = Smi(tmp_path, Tool.model_validate({"behaviours": [{"printMegabytes": 2, "exitCode": 0}]}))
    assert len(smi.run("compute-policy", "-i", smi.uuids[0], "--set-timeslice", "1").stdout) == 2_000_001
