"""Processes as /proc shows them."""

import os
import subprocess
import sys

from dra_driver.mps import running


def test_process_that_is_only_to_be_reaped_is_not_of_its_session_any_more():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True) as child:
        assert running.of_session(child.pid) == [child.pid]
        child.stdin.close()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert running.of_session(child.pid) == []


def test_probe_of_a_folder_is_no_supervisor_of_it(tmp_path):
    def started(*words):
        command = [sys.executable, "-c", "print(flush=True); input()", running.COMMAND, *words, str(tmp_path)]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert child.stdout.readline() == b"\n"
        return child

    with started("--is-ready"), started("--driver-root", "/") as supervisor:
        try:
            assert running.supervisors(tmp_path) == [supervisor.pid]
        finally:
            supervisor.stdin.close()
