"""Run as a script: ties this process to its parent, then becomes the command that follows.

``python tied.py PARENT_PID COMMAND ARGUMENT...`` - the kernel ends the command when the thread that started it
ends, so nothing is left behind by a program that was killed. Imports nothing of this project.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Have the kernel end this process with SIGKILL when the thread that started it ends."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")


def main(parent: int, command: list[str]) -> None:
    """Does not return, unless the parent is gone already."""
    die_with_parent()
    if os.getppid() == parent:
        os.execv(command[0], command)  # noqa: S606 - the command line comes from the parent


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
