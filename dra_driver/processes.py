"""Runs one short program with limits on its time and output. Knows nothing of GPUs."""

import contextlib
import errno
import os
import select
import selectors
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Final

ENVIRONMENT: Final = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
"""For programs that shall see nothing of our own environment, whose variables may change what they do."""

INITIAL_PID_NAMESPACE: Final = "pid:[4026531836]"
"""The host's, as ``/proc/<pid>/ns/pid`` names it, a constant of the kernel. In another one, process 1 is another."""

_KEPT_BYTES: Final = 64 * 1024
_READ_BYTES: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class Finished:
    """How a program ended. code: exit code, negative signal number when it was killed by a signal.

    output: the last 64 KiB of standard output and error together.
    """

    code: int
    output: str

    @property
    def ending(self) -> str:
        """``failed with exit code 3`` or ``was killed by signal SIGSEGV``."""
        if self.code >= 0:
            return f"failed with exit code {self.code}"
        try:
            name = signal.Signals(-self.code).name
        except ValueError:
            name = str(-self.code)
        return f"was killed by signal {name}"


def run_limited(
    command: Sequence[str],
    environment: Mapping[str, str],
    timeout_s: float,
    inherited: Sequence[int] = (),
    text: str = "",
) -> Finished:
    """Run a program without a shell, in a process group of its own.

    inherited: descriptors that the program gets too, such as a file lock that shall last as long as it runs.
    text: its standard input, some lines at most: a pipe holds them whether or not it reads.

    Raises TimeoutError after ``timeout_s`` seconds, with the whole group killed, or OSError when it cannot be
    started. Any amount of output is read, so that the program never blocks on it.
    """
    deadline = time.monotonic() + timeout_s
    with _standard_input(text) as stdin:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,
            pass_fds=inherited,
        )
    assert process.stdout is not None  # noqa: S101 - for the type checker: PIPE was asked for
    try:
        output = _read_to_end(process.stdout, deadline)
        code = _await_end(process, deadline)
    except TimeoutError as error:
        raise TimeoutError(f"no end within {timeout_s:g} s") from error
    finally:
        _end(process)
        process.stdout.close()
    return Finished(code, output.decode("utf-8", "replace"))


@contextlib.contextmanager
def _standard_input(text: str) -> Iterator[int]:
    """A descriptor from which the text can be read, and then its end. Raises OSError for more than a pipe holds."""
    if not text:
        yield subprocess.DEVNULL
        return
    reading, writing = os.pipe()
    try:
        with os.fdopen(writing, "wb", buffering=0) as pipe:
            os.set_blocking(writing, False)
            content = text.encode()
            if pipe.write(content) != len(content):
                raise OSError(errno.EMSGSIZE, f"{len(content)} bytes are too much for standard input")
        yield reading
    finally:
        os.close(reading)


def _read_to_end(stream: IO[bytes], deadline: float) -> bytes:
    """The last bytes up to the end of the stream. Raises TimeoutError at the deadline."""
    descriptor = stream.fileno()
    os.set_blocking(descriptor, False)
    kept = b""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while True:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise TimeoutError
            if not selector.select(remaining):
                continue
            chunk = os.read(descriptor, _READ_BYTES)
            if not chunk:
                return kept
            kept = (kept + chunk)[-_KEPT_BYTES:]


def _await_end(process: subprocess.Popen[bytes], deadline: float) -> int:
    """The exit code. Raises TimeoutError at the deadline.

    ``Popen.wait`` with a time limit looks again and again, with pauses that grow: milliseconds on each call.
    """
    descriptor = os.pidfd_open(process.pid)
    try:
        waiting = select.poll()
        waiting.register(descriptor, select.POLLIN)
        if not waiting.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise TimeoutError
    finally:
        os.close(descriptor)
    return process.wait()


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the whole group unless the program was seen to end: its children may still hold the pipe."""
    if process.returncode is None:
        # Not reaped yet, even if it has ended: so its id cannot name another group.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
