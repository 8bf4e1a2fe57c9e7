"""The stand-in nvidia-cuda-mps-control as a program: what NVIDIA's does, as far as the driver relies on it."""

import contextlib
import os
import signal
import stat
import subprocess
import time

import pytest

from dra_driver.devices import stand_in
from dra_driver.devices.scenario import Mps
from dra_driver.devices.simulated import SimulatedNode

SECONDS = 20


class Mine:
    """The programs of a node with two H200, and a pipe directory."""

    def __init__(self, base):
        node = SimulatedNode.load("h200x2")
        node.materialise(base / "root")
        self.uuids = [gpu.uuid for gpu in node.source().scan().gpus]
        self.programs = base / "root/usr/bin"
        self.pipe = base / "pipe"
        self.pipe.mkdir()
        self.environment = {
            "PATH": str(self.programs),
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe),
            "CUDA_VISIBLE_DEVICES": ",".join(self.uuids),
        }

    def behave(self, **ways):
        for name in ("control", "server"):
            (self.programs / f"nvidia-cuda-mps-{name}").write_text(stand_in.mps_script(Mps.model_validate(ways)))

    def program(self, *arguments):
        return [str(self.programs / "nvidia-cuda-mps-control"), *arguments]

    def say(self, *lines):
        done = subprocess.run(
            self.program(),
            input="".join(f"{line}\n" for line in lines),
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        return done.returncode, done.stdout

    @contextlib.contextmanager
    def daemon(self, *flags):
        with subprocess.Popen(
            self.program("-f", *flags), env=self.environment, stderr=subprocess.PIPE, text=True, start_new_session=True
        ) as daemon:
            deadline = time.monotonic() + SECONDS
            while self.say("get_server_list")[0] != 0 and daemon.poll() is None:
                assert time.monotonic() < deadline
            try:
                yield daemon
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(daemon.pid, signal.SIGKILL)


@pytest.fixture
def mps(tmp_path):
    return Mine(tmp_path)


def test_daemon_makes_its_files_with_the_rights_of_the_real_one(mps):
    with mps.daemon() as daemon:
        found = {path.name: oct(stat.S_IMODE(path.lstat().st_mode)) for path in mps.pipe.iterdir()}
        assert found == {
            "control": "0o666",
            "control_lock": "0o666",
            "control_privileged": "0o755",
            "log": "0o777",
            "nvidia-cuda-mps-control.pid": "0o666",
        }
        assert stat.S_ISFIFO((mps.pipe / "log").stat().st_mode)
        assert (mps.pipe / "nvidia-cuda-mps-control.pid").read_text() == f"{daemon.pid}\n"


def test_command_without_a_daemon_fails(mps):
    assert mps.say("get_server_list") == (1, "Cannot find MPS control daemon process\n")


def test_unknown_command_is_said_and_no_failure(mps):
    with mps.daemon():
        assert mps.say("nonsense") == (0, 'Unknown command "nonsense"\n')


@pytest.mark.parametrize(
    ("asked", "shown"), [("25", "25.0"), ("100", "100.0"), ("0", "100.0"), ("-1", "100.0"), ("101", "100.0")]
)
def test_percentage_is_printed_when_it_is_set_and_when_it_is_asked_for(mps, asked, shown):
    with mps.daemon():
        assert mps.say("get_default_active_thread_percentage") == (0, "100.0\n")
        assert mps.say(f"set_default_active_thread_percentage {asked}") == (0, f"{shown}\n")
        assert mps.say("get_default_active_thread_percentage") == (0, f"{shown}\n")


@pytest.mark.parametrize(
    ("asked", "shown"), [("2048M", "2G"), ("1024M", "1G"), ("1500M", "1G"), ("100M", "100M"), ("3G", "3G")]
)
def test_limit_is_printed_only_when_it_is_asked_for(mps, asked, shown):
    with mps.daemon():
        assert mps.say(f"set_default_device_pinned_mem_limit {mps.uuids[0]} {asked}") == (0, "")
        assert mps.say(f"get_default_device_pinned_mem_limit {mps.uuids[0]}") == (0, f"{shown}\n")
        assert mps.say(f"get_default_device_pinned_mem_limit {mps.uuids[1]}") == (0, "")


def test_wrong_device_is_only_logged(mps):
    with mps.daemon() as daemon:
        assert mps.say("set_default_device_pinned_mem_limit GPU-nope 1G") == (0, "")
        assert mps.say("quit") == (0, "")
        assert "Invalid device identifier format: GPU-nope" in daemon.communicate(timeout=SECONDS)[1]


def test_quit_ends_the_daemon_well_and_files_stay(mps):
    with mps.daemon() as daemon:
        assert mps.say("quit") == (0, "")
        assert daemon.wait(SECONDS) == 0
    assert (mps.pipe / "control").exists()
    with mps.daemon():
        assert mps.say("get_server_list") == (0, "")


def test_second_daemon_of_a_directory_gives_way(mps):
    with mps.daemon():
        done = subprocess.run(
            mps.program("-f"), env=mps.environment, stderr=subprocess.PIPE, text=True, timeout=SECONDS, check=False
        )
        assert (done.returncode, done.stderr) == (1, "An instance of this daemon is already running\n")
    with mps.daemon() as killed:
        killed.kill()
        killed.wait(SECONDS)
        with mps.daemon():
            assert mps.say("get_server_list") == (0, "")


def test_signal_ends_it_at_once(mps):
    with mps.daemon() as daemon:
        daemon.terminate()
        assert daemon.wait(SECONDS) == -signal.SIGTERM


def test_directory_that_is_not_there_is_a_failure(mps):
    mps.pipe.rmdir()
    done = subprocess.run(
        mps.program("-f"), env=mps.environment, stderr=subprocess.PIPE, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 1
    assert "No such file or directory" in done.stderr


@pytest.mark.parametrize("command", ["set_default_active_thread_percentage", "set_default_device_pinned_mem_limit"])
def test_scenario_may_have_it_refuse_a_setting(mps, command):
    mps.behave(refuses=[command])
    with mps.daemon():
        mps.say("set_default_active_thread_percentage 25", f"set_default_device_pinned_mem_limit {mps.uuids[0]} 1G")
        percentage = mps.say("get_default_active_thread_percentage")[1].strip()
        limit = mps.say(f"get_default_device_pinned_mem_limit {mps.uuids[0]}")[1].strip()

    wanted = {
        "set_default_active_thread_percentage": ("100.0", "1G"),
        "set_default_device_pinned_mem_limit": ("25.0", ""),
    }
    assert (percentage, limit) == wanted[command]


def test_scenario_may_have_it_die(mps):
    mps.behave(diesAfterMs=1)
    with mps.daemon() as daemon:
        assert daemon.wait(SECONDS) == 1
        assert "Fatal error: the scenario says so" in daemon.stderr.read()


def test_programs_may_be_missing(tmp_path):
    scenario = tmp_path / "node.yaml"
    scenario.write_text(
        "driver: {version: '580.159.04'}\nmps: {missing: true}\n"
        "gpus: [{productName: X, architecture: Hopper, cudaComputeCapability: '9.0'}]\n"
    )
    SimulatedNode.load(scenario).materialise(tmp_path / "root")

    assert not list((tmp_path / "root/usr/bin").glob("nvidia-cuda-mps-*"))
