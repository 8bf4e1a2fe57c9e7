"""Machines: namespaces, processes, power cuts; and that nothing of a cluster is left when it is removed."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hack.cluster import cleanup
from hack.cluster.errors import ClusterError
from hack.cluster.machine import Machine
from hack.cluster.processes import Process, start_time

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("nsenter") is None, reason="namespaces need root and util-linux"
)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "cluster"
    directory.mkdir()
    (directory / cleanup.STATE).write_text("{}")
    yield directory
    cleanup.remove(directory)


@pytest.fixture
def machine(directory: Path) -> Machine:
    machine = a_machine(directory)
    machine.boot()
    return machine


def a_machine(directory: Path, name: str = "node-1") -> Machine:
    return Machine(name, directory / name, directory / "logs", f"{cleanup.cgroup(directory)}/{name}")


def end_code(machine: Machine, *argv: str) -> int:
    machine.start("program", argv)
    return machine.end("program", 0, 10.0)


@needs_root
def test_machine_has_its_own_host_name(machine: Machine) -> None:
    assert machine.run(["hostname"]).strip() == "node-1"


@needs_root
def test_machine_writes_to_folders_of_its_own(machine: Machine) -> None:
    machine.run(["sh", "-c", "echo here > /var/lib/file; echo there > /run/file; echo too > /etc/file"])
    assert machine.path("/var/lib/file").read_text() == "here\n"
    assert machine.path("/run/file").read_text() == "there\n"
    assert not Path("/etc/file").exists()


@needs_root
def test_machine_has_its_own_boot_id(machine: Machine) -> None:
    assert machine.run(["cat", "/proc/sys/kernel/random/boot_id"]).strip() == machine.boot_id
    assert machine.boot_id != Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@needs_root
def test_machine_sees_its_own_processes_only(machine: Machine) -> None:
    assert machine.run(["sh", "-c", "cat /proc/1/cmdline"]).split("\0")[-2] == str(machine.directory / "machine.json")


@needs_root
def test_machines_share_the_network_they_are_given(directory: Path, machine: Machine) -> None:
    other = a_machine(directory, "node-2")
    other.boot(machine.init.pid)
    assert other.run(["readlink", "/proc/self/ns/net"]) == machine.run(["readlink", "/proc/self/ns/net"])
    assert machine.run(["readlink", "/proc/self/ns/net"]).strip() != os.readlink("/proc/self/ns/net")


@needs_root
def test_output_of_a_program_is_in_its_log(machine: Machine) -> None:
    assert end_code(machine, "/bin/sh", "-c", "echo out; echo err >&2") == 0
    assert machine.log("program").read_text() == "out\nerr\n"


@needs_root
def test_exit_code_of_a_program_is_kept(machine: Machine) -> None:
    assert end_code(machine, "/bin/sh", "-c", "exit 3") == 3


@needs_root
def test_program_that_was_killed_has_the_negative_signal(machine: Machine) -> None:
    machine.start("sleep", ["/bin/sleep", "60"])
    assert machine.end("sleep", signal.SIGKILL) == -signal.SIGKILL


@needs_root
def test_process_id_is_the_one_of_the_host(machine: Machine) -> None:
    process = machine.start("sleep", ["/bin/sleep", "61"])
    assert Path(f"/proc/{process.pid}/cmdline").read_bytes() == b"/bin/sleep\x0061\x00"


@needs_root
def test_name_that_runs_already_is_refused(machine: Machine) -> None:
    machine.start("sleep", ["/bin/sleep", "60"])
    with pytest.raises(ClusterError, match="sleep runs already"):
        machine.start("sleep", ["/bin/sleep", "60"])


@needs_root
def test_program_that_is_missing_is_named(machine: Machine) -> None:
    with pytest.raises(ClusterError, match=r"/no/program: .*No such file"):
        machine.start("program", ["/no/program"])


@needs_root
def test_check_of_a_program_that_ended_shows_its_last_words(machine: Machine) -> None:
    end_code(machine, "/bin/sh", "-c", "echo alas; exit 1")
    with pytest.raises(ClusterError, match="program on node-1 ended with exit code 1: alas"):
        machine.check("program")


@needs_root
def test_power_cut_ends_what_the_program_started_too(machine: Machine) -> None:
    machine.start("parent", ["/bin/sh", "-c", "setsid sleep 62 & echo started; wait"])
    while not machine.log("parent").read_text():
        time.sleep(0.01)
    members = cleanup.processes(machine.directory.parent)
    machine.halt()
    assert len(members) == 3
    assert not [process for process in members if process.alive()]


@needs_root
def test_power_cut_removes_the_groups_of_containers(machine: Machine) -> None:
    place = Path("/sys/fs/cgroup").glob(f"**/{machine.cgroup}")
    (next(place) / "pod-1").mkdir()
    machine.halt()
    assert not list(Path("/sys/fs/cgroup").glob(f"**/{machine.cgroup}"))


@needs_root
def test_reboot_empties_run_and_changes_the_boot_id(machine: Machine) -> None:
    before = machine.boot_id
    machine.run(["sh", "-c", "echo > /run/gone; echo > /var/lib/kept"])
    machine.halt()
    machine.boot()
    assert machine.boot_id != before
    assert (machine.path("/run/gone").exists(), machine.path("/var/lib/kept").exists()) == (False, True)


@needs_root
def test_mounts_of_a_machine_do_not_reach_the_host(machine: Machine) -> None:
    machine.run(["mount", "-t", "tmpfs", "tmpfs", "/var/lib"])
    assert cleanup.mounts_below(machine.directory, Path("/proc/self/mountinfo").read_text()) == []


@needs_root
def test_removal_leaves_neither_processes_nor_groups_nor_files(directory: Path, machine: Machine) -> None:
    process = machine.start("sleep", ["/bin/sleep", "60"])
    cleanup.remove(directory)
    assert not process.alive()
    assert not directory.exists()
    assert not list(Path("/sys/fs/cgroup").glob(f"**/{cleanup.cgroup(directory)}"))


@needs_root
def test_removal_ends_machines_that_were_never_written_down(directory: Path, machine: Machine) -> None:
    init = machine.init
    (machine.directory / "init.json").unlink()
    cleanup.remove(directory)
    assert not init.alive()


def test_removal_leaves_a_directory_that_holds_no_cluster(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ClusterError, match="holds no cluster"):
        cleanup.remove(tmp_path)
    assert (tmp_path / "thesis.txt").exists()


def test_logs_are_kept_when_asked_for(tmp_path: Path) -> None:
    directory = tmp_path / "cluster"
    (directory / "logs").mkdir(parents=True)
    (directory / "logs" / "node-1-kubelet.log").write_text("why")
    (directory / "etcd").mkdir()
    (directory / cleanup.STATE).write_text("{}")
    cleanup.remove(directory, keep_logs=True)
    assert sorted(path.name for path in directory.iterdir()) == [cleanup.STATE, "logs"]
    cleanup.remove(directory)
    assert not directory.exists()


def test_removal_of_nothing_is_fine(tmp_path: Path) -> None:
    cleanup.remove(tmp_path / "none")


def test_mount_points_with_blanks_are_found() -> None:
    text = (
        "36 35 98:0 / /tmp/my\\040cluster/var rw - ext4 /dev/root rw\n37 35 98:0 / /tmp/other rw - ext4 /dev/root rw\n"
    )
    assert cleanup.mounts_below(Path("/tmp/my cluster"), text) == ["/tmp/my cluster/var"]


def test_process_with_another_start_time_gets_no_signal() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as child:
        started = start_time(child.pid)
        assert started is not None
        Process(child.pid, started + 1).signal(signal.SIGKILL)
        assert Process(child.pid, started).alive()
        Process(child.pid, started).signal(signal.SIGKILL)
        assert child.wait(10) == -signal.SIGKILL


def test_zombie_counts_as_gone() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert start_time(child.pid) is None
    child.wait()
