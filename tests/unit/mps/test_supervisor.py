"""``dra-driver mps-daemon`` as a process, with the stand-in daemon: what comes of it, whoever is killed when."""

import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from dra_driver.model.errors import MpsError
from dra_driver.mps import running
from dra_driver.mps.description import Description
from dra_driver.mps.folders import Failure
from dra_driver.mps.mounts import KernelMounts
from dra_driver.mps.supervisor import _MOST_OUTPUT, Supervisor
from dra_driver.mps.tool import MpsTool
from tests.unit.mps.node import ID, NOBODY, SECONDS, UUIDS, daemon, needs_root, until

WHOLE = daemon(thread_percentage=25, memory_limits=((UUIDS[0], "2048M"), (UUIDS[1], "1500M")))


def serving(node):
    until(node.folder.serves, "it serves")


def control_daemon(node):
    found = running.control_daemon(node.folder.path)
    assert found is not None
    return found


def ended(process):
    """Exit code and what it said."""
    said, _ = process.communicate(timeout=SECONDS)
    return process.returncode, said


def test_daemon_serves_with_its_settings_made(node):
    node.describe(WHOLE)
    with node.supervisor():
        serving(node)

        assert node.control("get_default_active_thread_percentage") == (0, "25.0\n")
        assert node.control(f"get_default_device_pinned_mem_limit {UUIDS[0]}") == (0, "2G\n")
        assert node.control(f"get_default_device_pinned_mem_limit {UUIDS[1]}") == (0, "1G\n")


def test_daemon_is_for_its_devices_in_a_session_of_its_own(node):
    node.describe(daemon(devices=UUIDS[:1], multi_user=True))
    with node.supervisor() as supervisor:
        serving(node)
        found = control_daemon(node)

        with open(f"/proc/{found}/environ") as environ:
            assert f"CUDA_VISIBLE_DEVICES={UUIDS[0]}" in environ.read().split("\0")
        with open(f"/proc/{found}/cmdline") as cmdline:
            assert cmdline.read().split("\0")[-3:-1] == ["-f", "-M"]
        assert os.getsid(found) == found != supervisor.pid


def test_signal_ends_daemon_and_supervisor_in_peace(node):
    node.describe()
    with node.supervisor() as supervisor:
        serving(node)
        supervisor.terminate()

        assert ended(supervisor)[0] == 0
    assert node.processes() == []
    assert not node.folder.serves()
    assert not (node.folder.path / "ready").exists()
    assert "Exit" in (node.folder.log / "output").read_text()


def test_wish_in_the_folder_ends_it_too_and_keeps_the_next_from_starting(node):
    node.describe()
    with node.supervisor() as supervisor:
        serving(node)
        node.folder.set_stopping()
        assert ended(supervisor)[0] == 0
    with node.supervisor() as supervisor:
        assert ended(supervisor) == (0, "")
    assert node.processes() == []


def test_quit_waits_for_a_client(node):
    node.describe()
    with node.supervisor() as supervisor:
        serving(node)
        with node.client():
            server = int(node.control("get_server_list")[1])
            supervisor.terminate()
            # The daemon has the command when it is not ready any more and still has its client.
            until(lambda: not (node.folder.path / "ready").exists())
            assert supervisor.poll() is None
            assert server in node.processes()
        assert ended(supervisor)[0] == 0
    assert node.processes() == []
    assert "Exit" in (node.folder.log / "output").read_text()


def test_client_that_stays_is_not_waited_for_for_ever(node):
    node.describe()
    with node.supervisor() as supervisor:
        serving(node)
        with node.client() as client:
            supervisor.terminate()

            assert ended(supervisor)[0] == 0
            assert client.recv(1) == b""
    assert node.processes() == []


def test_daemon_that_ignores_quit_is_ended_by_signal(node):
    node.behave(ignoresQuit=True)
    node.describe()
    with node.supervisor() as supervisor:
        serving(node)
        supervisor.terminate()

        assert ended(supervisor)[0] == 0
    assert node.processes() == []


@pytest.mark.parametrize(
    ("command", "setting"),
    [
        (
            "set_default_active_thread_percentage",
            'set_default_active_thread_percentage 25" was not taken: it says "100.0"',
        ),
        ("set_default_device_pinned_mem_limit", f'limit {UUIDS[0]} 2048M" was not taken: it says nothing'),
    ],
)
def test_setting_that_is_refused_ends_it_for_good_and_names_the_setting(node, command, setting):
    node.behave(refuses=[command])
    node.describe(WHOLE)
    with node.supervisor() as supervisor:
        code, said = ended(supervisor)

    assert code == 1
    assert setting in said
    failure = node.folder.failure()
    assert failure.final
    assert setting in failure.text
    assert not (node.folder.path / "ready").exists()
    assert node.processes() == []


def test_daemon_that_dies_at_once_is_told_of_with_its_last_words(node):
    node.behave(diesAtStart=True)
    node.describe()
    with node.supervisor() as supervisor:
        code, said = ended(supervisor)

    text = (
        f"MPS daemon {ID}: nvidia-cuda-mps-control ended by itself with exit code 1: "
        '"Failed to initialize MPS: the scenario says so"'
    )
    assert (code, said.splitlines()[-1]) == (1, f"dra-driver: {text}")
    assert node.folder.failure() == Failure(text, final=False)


def test_daemon_that_dies_later_ends_the_supervisor_and_is_ready_no_more(node):
    node.behave(diesAfterMs=300)
    node.describe()
    with node.supervisor() as supervisor:
        code, said = ended(supervisor)

    assert code == 1
    assert "serves" in said
    assert "Fatal error: the scenario says so" in node.folder.failure().text
    assert not (node.folder.path / "ready").exists()


def test_daemon_that_is_killed_takes_its_servers_along(node):
    node.describe()
    with node.supervisor() as supervisor:
        serving(node)
        with node.client():
            os.kill(control_daemon(node), signal.SIGKILL)

            assert ended(supervisor)[0] == 1
    assert "ended by itself, killed by signal SIGKILL" in node.folder.failure().text
    assert node.processes() == []


def test_daemon_that_never_answers_is_ended_after_its_time(node):
    node.behave(neverAnswers=True)
    node.describe()
    with node.supervisor("--patience", "0.3") as supervisor:
        code, said = ended(supervisor)

    assert code == 1
    assert f"MPS daemon {ID} does not answer after 0.3 s" in said
    assert "Starting control daemon" in node.folder.failure().text
    assert node.processes() == []


def test_daemon_that_takes_its_time_is_waited_for(node):
    node.behave(delayMs=500)
    node.describe()
    with node.supervisor():
        serving(node)


def test_signal_while_it_is_waited_for_ends_it(node):
    node.behave(neverAnswers=True)
    node.describe()
    with node.supervisor() as supervisor:
        until(lambda: running.control_daemon(node.folder.path))
        supervisor.terminate()
        assert ended(supervisor)[0] == 0
    assert node.folder.failure() is None
    assert node.processes() == []


def test_killed_supervisor_leaves_clients_alone_and_the_next_takes_the_daemon_over(node):
    node.describe(WHOLE)
    with node.supervisor() as supervisor:
        serving(node)
        supervisor.kill()
        supervisor.wait(SECONDS)
    found = control_daemon(node)
    assert not node.folder.serves()
    with node.client() as client, node.supervisor() as supervisor:
        serving(node)
        assert control_daemon(node) == found
        client.setblocking(False)
        with pytest.raises(BlockingIOError):
            client.recv(1)
        client.close()
        supervisor.terminate()
        assert ended(supervisor)[0] == 0
    assert node.processes() == []


def test_daemon_that_was_taken_over_is_watched(node):
    node.describe()
    with node.supervisor() as supervisor:
        serving(node)
        supervisor.kill()
        supervisor.wait(SECONDS)
    with node.supervisor() as supervisor:
        serving(node)
        os.kill(control_daemon(node), signal.SIGKILL)
        assert ended(supervisor)[0] == 1
    assert "nvidia-cuda-mps-control ended by itself" in node.folder.failure().text


def test_daemon_that_was_left_and_does_not_answer_is_replaced(node):
    node.behave(neverAnswers=True)
    node.describe()
    with node.supervisor() as supervisor:
        first = until(lambda: running.control_daemon(node.folder.path))
        supervisor.kill()
        supervisor.wait(SECONDS)
    node.behave()
    with node.supervisor():
        serving(node)
        assert control_daemon(node) != first


def test_supervisor_killed_with_its_daemon_leaves_nothing_in_the_way(node):
    node.describe()
    with node.supervisor() as supervisor:
        serving(node)
        with node.client():
            supervisor.kill()
            supervisor.wait(SECONDS)
            os.kill(control_daemon(node), signal.SIGKILL)
    with node.supervisor():
        serving(node)
        assert len(node.processes()) == 2


def test_second_supervisor_of_a_folder_gives_way(node):
    node.describe()
    with node.supervisor():
        serving(node)
        with node.supervisor() as second:
            code, said = ended(second)
        assert code == 1
        assert f"another supervisor has {node.folder.lock}" in said
        assert node.folder.failure() is None
        assert node.folder.serves()


def test_folder_that_is_gone_ends_everything(node):
    node.describe()
    with node.supervisor() as supervisor:
        serving(node)
        shutil.rmtree(node.folder.path)
        assert ended(supervisor)[0] == 0
    assert node.processes() == []


def test_folder_that_was_made_anew_is_another_ones(node):
    node.describe()
    with node.supervisor() as first:
        serving(node)
        os.kill(first.pid, signal.SIGSTOP)
        shutil.rmtree(node.folder.path)
        node.describe()
        with node.supervisor():
            serving(node)
            found = control_daemon(node)
            os.kill(first.pid, signal.SIGCONT)
            ended(first)
            assert node.folder.serves()
            assert control_daemon(node) == found


@pytest.mark.parametrize("text", ["", "{}", '{"id": "x-abcde"}'])
def test_description_that_is_damaged_starts_nothing(node, text):
    node.describe()
    (node.folder.path / "daemon.json").write_text(text)
    with node.supervisor() as supervisor:
        code, said = ended(supervisor)
    assert (code, node.processes()) == (1, [])
    assert said.splitlines()[-1] == f"dra-driver: {node.folder.failure().text}"


def test_missing_program_is_told_in_the_folder(node):
    node.behave(missing=True)
    node.describe()
    with node.supervisor() as supervisor:
        assert ended(supervisor)[0] == 1
    assert "nvidia-cuda-mps-control is not there (searched" in node.folder.failure().text


def test_program_that_cannot_be_run_is_told_in_the_folder(node):
    node.describe()
    (node.root / "usr/bin/nvidia-cuda-mps-control").chmod(0o644)
    with node.supervisor() as supervisor:
        assert ended(supervisor)[0] == 1
    assert "Permission denied" in node.folder.failure().text


def test_memory_that_is_not_mounted_starts_nothing(node):
    node.folder.make()
    node.folder.describe(Description(daemon(), "process", True))
    with node.supervisor() as supervisor:
        code, said = ended(supervisor)
    assert code == 1
    assert f"nothing is mounted at {node.folder.shm}" in said


def test_what_a_container_left_for_the_daemon_to_open_is_taken_away(node):
    node.describe()
    precious = node.base / "precious"
    precious.write_text("precious")
    for name in ("nvidia-cuda-mps-control.pid", "control_lock"):
        (node.folder.pipe / name).symlink_to(precious)
    (node.folder.pipe / "control").mkdir()
    with node.supervisor():
        serving(node)
    assert precious.read_text() == "precious"


@pytest.mark.parametrize("mask", [0o077, 0o000])
def test_umask_of_the_driver_matters_to_nobody(node, mask):
    node.describe()
    before = os.umask(mask)
    try:
        with node.supervisor():
            serving(node)
            status = Path(f"/proc/{control_daemon(node)}/status").read_text()
            assert "Umask:\t0022\n" in status
            assert stat.S_IMODE((node.folder.path / "lib").stat().st_mode) == 0o755
    finally:
        os.umask(before)


@needs_root
def test_daemon_shares_the_mounted_memory_and_has_short_paths(node_on_disk):
    node = node_on_disk
    node.describe(mounted=True)
    (node.folder.shm / "of-a-client").touch()
    with node.supervisor() as supervisor:
        serving(node)
        found = control_daemon(node)

        assert os.listdir(f"/proc/{found}/root/dev/shm") == ["of-a-client"]
        with open(f"/proc/{found}/environ") as environ:
            pipe = dict(word.split("=", 1) for word in environ.read().split("\0") if word)["CUDA_MPS_PIPE_DIRECTORY"]
        assert len(f"{pipe}/control_privileged") < 40
        assert os.path.samestat(os.stat(f"/proc/{found}/root{pipe}"), node.folder.pipe.stat())
        assert stat.S_ISSOCK((node.folder.pipe / "control").stat().st_mode)
        with node.client():
            pass
        KernelMounts().unmount(node.folder.shm)
        supervisor.terminate()
        assert ended(supervisor)[0] == 0
    node.folder.remove()
    assert not node.folder.path.exists()


@needs_root
def test_other_user_may_ask_and_not_quit(node):
    node.describe(WHOLE)
    with node.supervisor():
        serving(node)
        assert node.command_of(NOBODY, "get_default_active_thread_percentage") == "25.0\n"
        assert node.command_of(NOBODY, "quit") == "Not enough privilege to execute quit command\n"
        said = node.command_of(NOBODY, "set_default_active_thread_percentage 90")
        assert said == f"Insufficient privileges for UID {NOBODY}\n"
        assert node.folder.serves()
        assert node.control("get_default_active_thread_percentage") == (0, "25.0\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["/somewhere"], "not the folder of an MPS daemon"), ([ID], "not an absolute path"), ([], "required: DIR")],
)
def test_wrong_usage_is_said_and_touches_nothing(arguments, said):
    done = subprocess.run(
        [sys.executable, "-m", "dra_driver", "mps-daemon", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert said in done.stderr


def test_supervisor_loads_little():
    code = (
        "import sys, dra_driver.commands.main, dra_driver.commands.mps_daemon, dra_driver.mps.supervisor;"
        "print(' '.join(sys.modules))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True).stdout.split()

    assert "dra_driver.mps.supervisor" in loaded
    assert not {"kubernetes", "pydantic", "grpc", "google.protobuf", "yaml", "sqlite3", "dra_driver.settings"} & {
        *loaded
    }


def test_daemon_that_ends_just_as_it_is_to_end_is_no_failure(node):
    node.describe()
    stop = threading.Event()
    supervisor = Supervisor(node.folder, MpsTool(node.root), stop)

    class Ending:
        def has_ended(self, within_s=0.0):
            stop.set()
            return True

    with supervisor._alone():
        supervisor._watch(SimpleNamespace(process=Ending(), status=""))
    assert node.folder.failure() is None


def test_output_of_a_daemon_that_says_much_is_cut(node):
    node.describe()
    with node.supervisor():
        serving(node)
        output = node.folder.log / "output"
        with output.open("ab") as told:
            told.write(b"x" * (_MOST_OUTPUT + 1))
        until(lambda: output.stat().st_size <= _MOST_OUTPUT, "it is cut")
        assert node.folder.serves()


def test_folder_that_was_made_anew_is_not_told_of_the_failure_of_the_one_before(node):
    node.describe()
    supervisor = Supervisor(node.folder, MpsTool(node.root), threading.Event())
    with supervisor._alone():
        supervisor._note(MpsError("it died"))
        assert node.folder.failure() == Failure("it died", final=False)
        node.folder.path.rename(node.mps / "old")
        node.describe()
        node.folder.lock.touch()
        supervisor._note(MpsError("it died"))
    assert node.folder.failure() is None
