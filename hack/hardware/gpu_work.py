"""What a pod of the scenes runs: looks at its GPUs through the CUDA driver API, then computes on them.

``gpu-work report`` prints one line of JSON and ends; ``gpu-work measure`` goes on with a line for each slot of time
until it is told to end. Only the standard library and libcuda.so.1 are used, and the library is looked for as any
program would look for it. With ``GPU_WORK=stand-in`` device files take the place of cards, and nothing is computed.

Work goes by the clock: all pods do the kind of work that the same slot has, so that nobody has to tell them.
"""

import array
import ctypes
import glob
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

SLOT_S: Final = float(os.environ.get("SLOT_S", "2"))
WORK: Final = tuple(os.environ.get("WORK", "compute,copy,launch").split(","))
"""The kinds of work of successive slots. compute: FP32 operations. copy: bytes read and written on the card. launch: a
kernel that does next to nothing, and the wait for it."""

THREADS: Final = 256
BLOCKS_OF_ONE: Final = 8
"""Blocks for each multiprocessor, so that all of its threads are taken."""
CHAINS: Final = 8
"""Independent sums of a thread; one alone would wait for its own last result."""
UNROLLED: Final = 16
LOOPS: Final = 2500
ROUNDS: Final = LOOPS * UNROLLED
"""Additions to each sum: few enough that all values are whole numbers that FP32 holds exactly."""
COPY_BYTES: Final = 1 << 30
COPIES: Final = 4
_MULTIPROCESSORS: Final = 16
_SHOWN: Final = re.compile(r"(NVIDIA|CUDA|GPU)_|LD_LIBRARY_PATH$")

Json = dict[str, Any]


def ptx() -> str:
    """The kernel: each thread adds ``step`` to its sums with fused multiply-adds, and writes their sum."""
    sums = [f"%f{number}" for number in range(1, CHAINS + 1)]
    start = [f"    mov.f32 {each}, %start;" for each in sums]
    body = [f"    fma.rn.f32 {each}, {each}, %factor, %step;" for each in sums] * UNROLLED
    total = [f"    add.f32 {sums[0]}, {sums[0]}, {each};" for each in sums[1:]]
    return "\n".join(
        [
            ".version 7.0",
            ".target sm_75",
            ".address_size 64",
            ".visible .entry add_up(",
            "    .param .u64 results, .param .u32 loops, .param .f32 factor, .param .f32 step",
            ")",
            "{",
            "    .reg .pred %again;",
            "    .reg .b32 %left, %thread, %block, %size, %number;",
            "    .reg .b64 %base, %place;",
            f"    .reg .f32 %factor, %step, %start, %f<{CHAINS + 1}>;",
            "    ld.param.u64 %base, [results];",
            "    ld.param.u32 %left, [loops];",
            "    ld.param.f32 %factor, [factor];",
            "    ld.param.f32 %step, [step];",
            "    cvta.to.global.u64 %base, %base;",
            "    mov.u32 %thread, %tid.x;",
            "    mov.u32 %block, %ctaid.x;",
            "    mov.u32 %size, %ntid.x;",
            "    mad.lo.u32 %thread, %block, %size, %thread;",
            "    mul.wide.u32 %place, %thread, 4;",
            "    add.u64 %place, %base, %place;",
            "    and.b32 %number, %thread, 1023;",
            "    cvt.rn.f32.u32 %start, %number;",
            *start,
            "again:",
            *body,
            "    sub.u32 %left, %left, 1;",
            "    setp.ne.u32 %again, %left, 0;",
            "    @%again bra again;",
            *total,
            "    st.global.f32 [%place], %f1;",
            "    ret;",
            "}",
            "",
        ]
    )


def expected(thread: int, loops: int) -> float:
    """What thread number ``thread`` writes, factor and step being 1."""
    return float(CHAINS * (thread % 1024 + loops * UNROLLED))


class CudaError(Exception):
    """A call of the driver API that failed; the text names call and error."""


class Card(Protocol):
    """One card to work on."""

    def facts(self) -> Json:
        """uuid, name, memory."""

    def run(self, kind: str) -> float:
        """Do some work of a kind and wait for it; how much: operations, bytes or launches."""

    def wrong(self) -> int:
        """In how many of 1024 threads' results each, of a kernel run now, there is one that is not what it must be."""


class Cuda:
    """The driver API. Raises CudaError when it cannot be loaded or finds no card that it may use."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise CudaError(str(error)) from error
        self.call("cuInit", ctypes.c_uint(0))

    def call(self, name: str, *arguments: Any) -> None:
        """Raises CudaError."""
        code = getattr(self._library, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._library.cuGetErrorName(code, ctypes.byref(text))
            raise CudaError(f"{name}: {(text.value or b'unknown error').decode()} ({code})")

    def number(self, name: str, *arguments: Any) -> int:
        """A call whose first argument is where an int goes."""
        value = ctypes.c_int()
        self.call(name, ctypes.byref(value), *arguments)
        return value.value

    def cards(self) -> "list[CudaCard]":
        """All cards."""
        return [CudaCard(self, self.number("cuDeviceGet", index)) for index in range(self.number("cuDeviceGetCount"))]


class CudaCard:
    """A card with a context, a kernel and memory for its results and for copies."""

    def __init__(self, cuda: Cuda, device: int) -> None:
        self._cuda, self._device = cuda, device
        self._context = ctypes.c_void_p()
        cuda.call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), device)
        self._enter()
        module, self._kernel = ctypes.c_void_p(), ctypes.c_void_p()
        cuda.call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(ptx().encode()))
        cuda.call("cuModuleGetFunction", ctypes.byref(self._kernel), module, ctypes.c_char_p(b"add_up"))
        self._blocks = BLOCKS_OF_ONE * cuda.number("cuDeviceGetAttribute", _MULTIPROCESSORS, device)
        self._results = self._allocate(4 * self.threads)
        self._source, self._target = self._allocate(COPY_BYTES), self._allocate(COPY_BYTES)

    @property
    def threads(self) -> int:
        """As many as run at once."""
        return self._blocks * THREADS

    def facts(self) -> Json:
        """See Card."""
        uuid, name, memory = ctypes.create_string_buffer(16), ctypes.create_string_buffer(128), ctypes.c_size_t()
        self._cuda.call("cuDeviceGetUuid_v2", uuid, self._device)
        self._cuda.call("cuDeviceGetName", name, len(name), self._device)
        self._cuda.call("cuDeviceTotalMem_v2", ctypes.byref(memory), self._device)
        digits = uuid.raw.hex()
        parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
        return {"uuid": f"GPU-{'-'.join(parts)}", "name": name.value.decode(), "memory": memory.value}

    def copied_back(self) -> bool:
        """Whether bytes come back from the card as they went."""
        sent = os.urandom(1 << 20)
        received = ctypes.create_string_buffer(len(sent))
        self._enter()
        self._cuda.call("cuMemcpyHtoD_v2", self._source, sent, ctypes.c_size_t(len(sent)))
        self._cuda.call("cuMemcpyDtoD_v2", self._target, self._source, ctypes.c_size_t(len(sent)))
        self._cuda.call("cuMemcpyDtoH_v2", received, self._target, ctypes.c_size_t(len(sent)))
        return received.raw == sent

    def run(self, kind: str) -> float:
        """See Card."""
        self._enter()
        if kind == "compute":
            self._launch(self._blocks, LOOPS)
            done = 2.0 * CHAINS * ROUNDS * self.threads
        elif kind == "copy":
            for _ in range(COPIES):
                size = ctypes.c_size_t(COPY_BYTES)
                self._cuda.call("cuMemcpyDtoDAsync_v2", self._target, self._source, size, None)
            done = 2.0 * COPIES * COPY_BYTES
        else:
            self._launch(1, 1)
            done = 1.0
        self._cuda.call("cuCtxSynchronize")
        return done

    def wrong(self) -> int:
        """See Card."""
        self.run("compute")
        found = array.array("f", bytes(4 * self.threads))
        address, size = found.buffer_info()
        self._cuda.call("cuMemcpyDtoH_v2", ctypes.c_void_p(address), self._results, ctypes.c_size_t(4 * size))
        right = array.array("f", [expected(thread, LOOPS) for thread in range(1024)])
        return sum(found[start : start + 1024] != right for start in range(0, size, 1024))

    def _enter(self) -> None:
        self._cuda.call("cuCtxSetCurrent", self._context)

    def _allocate(self, size: int) -> ctypes.c_uint64:
        place = ctypes.c_uint64()
        self._cuda.call("cuMemAlloc_v2", ctypes.byref(place), ctypes.c_size_t(size))
        return place

    def _launch(self, blocks: int, loops: int) -> None:
        values = (self._results, ctypes.c_uint32(loops), ctypes.c_float(1.0), ctypes.c_float(1.0))
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        self._cuda.call("cuLaunchKernel", self._kernel, blocks, 1, 1, THREADS, 1, 1, 0, None, pointers, None)


class StandIn:
    """A device file in the place of a card."""

    def __init__(self, path: str) -> None:
        self._minor = int(path.removeprefix("/dev/nvidia"))

    def facts(self) -> Json:
        """See Card."""
        return {"uuid": f"minor-{self._minor}", "name": "device file", "memory": 0}

    def copied_back(self) -> bool:
        """See CudaCard."""
        return True

    def run(self, kind: str) -> float:
        """See Card."""
        time.sleep(0.001)
        return {"compute": 1e9, "copy": 1e8}.get(kind, 1.0)

    def wrong(self) -> int:
        """See Card."""
        return 0


def cards() -> list[CudaCard] | list[StandIn]:
    """What this container has. Raises CudaError."""
    if os.environ.get("GPU_WORK") == "stand-in":
        return [StandIn(path) for path in _device_files() if re.fullmatch(r"/dev/nvidia\d+", path)]
    return Cuda().cards()


def report() -> tuple[Json, Card | None]:
    """What was found, and the first card. ``error`` where CUDA does not start, with no card."""
    found: list[CudaCard] | list[StandIn] = []
    said: Json = {"kind": "report", "count": 0, "cards": []}
    try:
        found = cards()
        said["count"] = len(found)
        for card in found:
            said["cards"].append({**card.facts(), "copied_back": card.copied_back(), "wrong": card.wrong()})
    except CudaError as error:
        said["error"] = str(error)
    said["devices"] = _device_files()
    said["environment"] = {name: value for name, value in sorted(os.environ.items()) if _SHOWN.match(name)}
    said["libraries"] = _libraries()
    return said, found[0] if found else None


def measure(card: Card, stopped: Callable[[], bool]) -> Iterator[Json]:
    """A line for each slot, until ``stopped``. seconds: from the first call to the end of the last."""
    while not stopped():
        slot = int(time.time() // SLOT_S)
        kind, end = WORK[slot % len(WORK)], (slot + 1) * SLOT_S
        began = time.time()
        calls: list[float] = []
        done = 0.0
        while time.time() < end and not stopped():
            at = time.perf_counter()
            done += card.run(kind)
            calls.append(time.perf_counter() - at)
        if calls:
            seconds, late = time.time() - began, began - slot * SLOT_S
            calls.sort()
            times = {
                "p50": calls[len(calls) // 2],
                "p99": calls[int(len(calls) * 0.99)],
                "max": calls[-1],
            }
            yield {
                "kind": kind,
                "slot": slot,
                "late": late,
                "seconds": seconds,
                "done": done,
                "calls": len(calls),
                **times,
            }


def _device_files() -> list[str]:
    return sorted(path for path in glob.glob("/dev/nvidia*") if not os.path.isdir(path))


def _libraries() -> list[str]:
    """Where the driver's libraries that this process has loaded were found."""
    with open("/proc/self/maps", encoding="utf-8") as file:
        paths = {line.split(maxsplit=5)[5].strip() for line in file if "/" in line}
    return sorted(path for path in paths if "libcuda" in path or "libnvidia" in path)


def _say(line: Json) -> None:
    print(json.dumps(line), flush=True)


def main(arguments: list[str]) -> int:
    """0, also when told to end; 1 when there is no card to measure, 2 for an unknown word."""
    if arguments not in (["report"], ["measure"]):
        print(f"gpu-work: found {arguments}, must be report or measure", file=sys.stderr)
        return 2
    ends: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, frame: ends.append(received))
    said, card = report()
    _say(said)
    if arguments == ["report"]:
        return 0
    if card is None:
        return 1
    for line in measure(card, lambda: bool(ends)):
        _say(line)
    _say({"kind": "end", "wrong": card.wrong()})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
