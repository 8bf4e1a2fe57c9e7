"""One short program: what it is given to read, and that limits hold all the same."""

import errno
import sys

import pytest

from dra_driver.processes import ENVIRONMENT, run_limited

ECHO = [sys.executable, "-c", "import sys; print(sys.stdin.read().upper(), end='')"]


def test_text_is_read_to_its_end():
    assert run_limited(ECHO, ENVIRONMENT, 20, text="one\nzwölf\n").output == "ONE\nZWÖLF\n"


def test_program_without_a_text_reads_nothing():
    assert run_limited(ECHO, ENVIRONMENT, 20).output == ""


def test_program_that_does_not_read_is_no_failure():
    assert run_limited([sys.executable, "-c", "print('done')"], ENVIRONMENT, 20, text="one\n").output == "done\n"


def test_program_that_does_not_end_is_killed_whatever_it_was_given():
    with pytest.raises(TimeoutError, match=r"no end within 0.2 s"):
        run_limited(["sleep", "600"], ENVIRONMENT, 0.2, text="one\n")


def test_text_that_no_pipe_holds_is_refused():
    with pytest.raises(OSError, match="too much for standard input") as raised:
        run_limited(ECHO, ENVIRONMENT, 20, text="x" * (1 << 20))
    assert raised.value.errno == errno.EMSGSIZE
