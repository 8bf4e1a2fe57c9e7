"""The stand-in nvidia-smi: a program of its own, so that whoever runs it meets real exit codes, signals, pipes, time.

``stand_in`` copies this text into the driver tree of a simulated node. Each run starts an interpreter, so only built-in
modules are imported: ``os`` alone takes milliseconds. The program finds the driver root by its own path, notes each
call in ``var/log/nvidia-smi.calls`` and keeps a GPU's slice in ``var/state/<uuid>/time_slice``.
"""

import posix
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypedDict

    class Behaviour(TypedDict):
        """A scenario's ``ToolBehaviour``: ``uuid`` '' and ``calls`` [] mean all, ``signal`` 0 none."""

        command: str
        uuid: str
        calls: list[int]
        stdout: str
        stderr: str
        print_megabytes: int
        hang: bool
        signal: int
        exit_code: int


LEVELS = ("Default", "Short", "Medium", "Long")
DAY_S = 86400.0


class Refused(Exception):
    """A command line that is not carried out. code: the exit code."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def main(delay_s: float, behaviours: "list[Behaviour]") -> None:
    """Carry out the command line and end the process.

    delay_s: how long a run takes at least, the start of the interpreter included. behaviours: the first that fits is
    carried out instead of the work.
    """
    root = sys.argv[0].removesuffix("/usr/bin/nvidia-smi")
    root = "" if root == sys.argv[0] else root
    try:
        code = run(root, sys.argv[1:], delay_s, behaviours)
    except Refused as error:
        write(2, f"{error}\n")
        code = error.code
    except OSError as error:
        write(2, f"nvidia-smi: {error}\n")
        code = 1
    # There is nothing to flush, and tidying up takes time.
    posix._exit(code)


def run(root: str, arguments: list[str], delay_s: float, behaviours: "list[Behaviour]") -> int:
    """The exit code. Raises Refused and OSError."""
    state = f"{root}/var/state"
    with open(f"{root}/var/log/nvidia-smi.calls", "ab", buffering=0) as log:
        log.write(encoded(" ".join(arguments) + "\n"))
    if exists(f"{state}/not-loaded"):
        raise Refused(9, "NVIDIA-SMI cannot talk to the NVIDIA driver: it is not loaded.")
    if arguments[:1] in (["-L"], ["--list-gpus"]):
        for uuid, minor, product in gpus(state):
            write(1, f"GPU {minor}: {product} (UUID: {uuid})\n")
        return 0
    if arguments[:1] != ["compute-policy"]:
        raise Refused(2, "Invalid combination of input arguments. Only compute-policy and -L work here.")
    command, uuid, value = parse(arguments[1:])
    if uuid and (not exists(f"{state}/{uuid}") or is_gone(state, uuid)):
        raise Refused(6, "No devices were found")
    call = count(f"{state}/{uuid}/{command}") if any(behaviour["calls"] for behaviour in behaviours) else 0
    time.sleep(max(0.0, delay_s - time.process_time()))
    for behaviour in behaviours:
        if fits(behaviour, command, uuid, call):
            return misbehave(behaviour)
    return show(state, uuid) if command == "list" else set_time_slice(state, uuid, value)


def parse(options: list[str]) -> tuple[str, str, str]:
    """(command, UUID or '', value) of a compute-policy call. Raises Refused."""
    command = uuid = value = ""
    words = iter(options)
    for word in words:
        option, joined, text = word.partition("=")
        if option in ("-i", "--id"):
            uuid = text if joined else next(words, "")
        elif option == "--set-timeslice":
            command, value = "set-timeslice", text if joined else next(words, "")
        elif word in ("-l", "--list"):
            command = "list"
        else:
            raise Refused(2, f'Option "{word}" is not recognized.')
    if not command:
        raise Refused(2, "compute-policy: nothing to do.")
    return command, uuid, value


def count(prefix: str) -> int:
    """Which call of its kind this is, from 1, also when several come at once: each makes a file of its own."""
    call = 1
    while True:
        try:
            posix.close(posix.open(f"{prefix}.{call}", posix.O_CREAT | posix.O_EXCL | posix.O_WRONLY, 0o644))
        except FileExistsError:
            call += 1
        else:
            return call


def fits(behaviour: "Behaviour", command: str, uuid: str, call: int) -> bool:
    """Whether a behaviour is meant for this call."""
    meant = behaviour["command"] == command and behaviour["uuid"] in ("", uuid)
    return meant and (not behaviour["calls"] or call in behaviour["calls"])


def misbehave(behaviour: "Behaviour") -> int:
    """Do what a behaviour says; its exit code, if it comes to that."""
    for stream, text in ((1, behaviour["stdout"]), (2, behaviour["stderr"])):
        if text:
            write(stream, f"{text}\n")
    if behaviour["print_megabytes"]:
        much = "nvidia-smi has much to say\n" * 40_000
        for left in range(behaviour["print_megabytes"] * 1_000_000, 0, -len(much)):
            write(1, much[:left])
        write(1, "\n")
    if behaviour["hang"]:
        time.sleep(DAY_S)
    if behaviour["signal"]:
        posix.kill(posix.getpid(), behaviour["signal"])
    return behaviour["exit_code"]


def show(state: str, uuid: str) -> int:
    """Print the slice of one GPU, or of all."""
    table = """\
+-------------------------------------+
| GPU compute policies:               |
| GPU     Name           Value        |
|=====================================|
"""
    for index, (each, _, _) in enumerate(gpus(state)):
        if uuid in ("", each):
            table += f"| {index:>3}   Timeslice   {level(state, each):>11}       |\n"
    write(1, table + "+-------------------------------------+\n")
    return 0


def set_time_slice(state: str, uuid: str, value: str) -> int:
    """Keep a GPU's slice. Raises Refused and OSError."""
    if value not in ("0", "1", "2", "3"):
        raise Refused(2, f'Timeslice "{value}" is not valid: 0=DEFAULT, 1=SHORT, 2=MEDIUM, 3=LONG')
    if not uuid:
        raise Refused(2, "compute-policy: a GPU is needed (-i).")
    # Overwritten in place: a reader never finds the file empty.
    descriptor = posix.open(f"{state}/{uuid}/time_slice", posix.O_RDWR | posix.O_CREAT, 0o644)
    posix.write(descriptor, f"{value}\n".encode())
    write(1, f"Set timeslice for GPU {uuid} to {value}.\nAll done.\n")
    return 0


def gpus(state: str) -> list[list[str]]:
    """[UUID, minor, product name] of each GPU that is on the bus, in order. Raises OSError."""
    with open(f"{state}/gpus", encoding="utf-8") as file:
        found = [line.rstrip("\n").split(" ", 2) for line in file]
    return [gpu for gpu in found if not is_gone(state, gpu[0])]


def is_gone(state: str, uuid: str) -> bool:
    """Whether a GPU is off the bus."""
    return exists(f"{state}/{uuid}/gone")


def level(state: str, uuid: str) -> str:
    """What nvidia-smi calls a GPU's slice."""
    try:
        with open(f"{state}/{uuid}/time_slice", encoding="utf-8") as file:
            return LEVELS[int(file.read())]
    except (OSError, ValueError, IndexError):
        return LEVELS[0]


def exists(path: str) -> bool:
    """Whether there is anything at a path."""
    try:
        posix.stat(path)
    except OSError:
        return False
    return True


def write(stream: int, text: str) -> None:
    """Write at once, so that a death by signal loses nothing and both streams keep their order."""
    left = encoded(text)
    while left:
        left = left[posix.write(stream, left) :]


def encoded(text: str) -> bytes:
    """The bytes of a text that may hold parts of the command line."""
    return text.encode("utf-8", "surrogateescape")
