"""NVML, and the only import of pynvml: session, one choke point for every call, inventory, compute mode.

The time slice is not here: NVML has no call for it (see ``devices.gpu_control``).
"""

import ctypes
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import pynvml

from dra_driver.devices import sysfs
from dra_driver.devices.bounded import Bounded
from dra_driver.devices.gpu_reader import GpuReader, OnceLog, found_again, left_out
from dra_driver.devices.memory_reader import MemoryReader
from dra_driver.devices.mig_reader import MigReader
from dra_driver.devices.nvml_calls import FunctionMissing, NotFound, NotSupported
from dra_driver.model.devices import ComputeMode, DriverInfo, Gpu, GpuProcess, Inventory, MigDevice
from dra_driver.model.errors import ControlError, ControlGone, ControlTimeout, DriverAbsent, DriverNotReady

log = logging.getLogger(__name__)

_T = TypeVar("_T")

Library = Path | Callable[[], Path | None] | None

_NO_DRIVER: Final = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "libnvidia-ml.so.1 cannot be loaded; is the driver installed?",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "the NVIDIA kernel driver is not loaded",
    pynvml.NVML_ERROR_UNINITIALIZED: "NVML is not initialised",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        "the NVIDIA kernel driver and libnvidia-ml.so.1 are of different versions: was the driver upgraded? "
        "Restarting this program loads the new library"
    ),
}
_ABSENT: Final = frozenset({pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED})
_MOST_SCANS_UNTIL_REOPEN: Final = 256
_GONE: Final = frozenset({pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED})


class NvmlSource:
    """The node's GPUs as NVML sees them, and their compute mode. Implements ports.DeviceSource.

    library: libnvidia-ml.so.1 under the driver root, or a function that looks for it (asked at each attempt,
    since the driver may arrive after this program); None leaves the search to the dynamic linker.
    sysfs, proc: where those file systems are seen. api: pynvml, or a table of functions like it.
    call_timeout_s, scan_timeout_s: NVML has no time limits of its own; a broken card can keep it for minutes.
    """

    def __init__(
        self,
        library: Library = None,
        sysfs: Path = Path("/sys"),
        *,
        proc: Path = Path("/proc"),
        api: Any = pynvml,
        call_timeout_s: float = 10.0,
        scan_timeout_s: float = 60.0,
    ) -> None:
        self._library = library
        self._sysfs = sysfs
        self._proc = proc
        self._api = api
        self._call_timeout_s = call_timeout_s
        self._scan_timeout_s = scan_timeout_s
        self._threads = Bounded("nvml")
        self._once = OnceLog()
        self._gpus = GpuReader(self._call, sysfs, self._once)
        self._migs = MigReader(self._call, self._once)
        self._memory = MemoryReader(self._call, api)
        self._lock = threading.RLock()
        self._ready = False
        self._session = 0
        self._missing_gpu = False
        self._scans_until_reopen = self._reopen_after = 1
        self._boot_id: str | None = None
        self._loaded: Path | None = None
        self._mismatch = False

    def scan(self) -> Inventory:
        """Look at the node afresh; a card that cannot be identified is left out and named in the log.

        Raises DriverAbsent when there is no NVIDIA driver, else DriverNotReady when NVML cannot be used, is lost, or
        does not answer in time. A node without GPUs is no error.
        """
        try:
            return self._threads.run(self._scan, self._scan_timeout_s)
        except (TimeoutError, ControlError) as error:
            raise DriverNotReady(f"NVML does not list the GPUs: {error}") from error

    def on_bus(self) -> tuple[str, ...] | None:
        """See ports.DeviceSource; asks the kernel, not NVML."""
        return sysfs.nvidia_gpus(self._sysfs)

    def compute_mode(self, gpu_uuid: str) -> ComputeMode:
        """Read the compute mode. Raises ControlUnsupported, ControlGone, ControlTimeout or ControlError."""

        def read() -> ComputeMode:
            number = self._call("nvmlDeviceGetComputeMode", self._handle(gpu_uuid))
            try:
                return ComputeMode(number)
            except ValueError as error:
                raise ControlError(f"NVML gave {number!r}, which is no compute mode") from error

        return self._control(gpu_uuid, "compute mode cannot be read", read)

    def set_compute_mode(self, gpu_uuid: str, mode: ComputeMode) -> None:
        """Set the compute mode. Raises as ``compute_mode`` does."""

        def write() -> None:
            self._call("nvmlDeviceSetComputeMode", self._handle(gpu_uuid), mode.value)

        self._control(gpu_uuid, f"compute mode cannot be set to {mode.name}", write)

    def check_memory_limits(self, gpu_uuid: str) -> None:
        """See ports.GpuMemory. Raises ControlUnsupported, ControlGone, ControlTimeout or ControlError."""
        self._control(
            gpu_uuid, "memory limits cannot be read", lambda: self._memory.check_limits(self._handle(gpu_uuid))
        )

    def processes(self, gpu_uuid: str) -> tuple[GpuProcess, ...]:
        """See ports.GpuMemory. Raises as ``check_memory_limits`` does."""
        return self._control(
            gpu_uuid, "processes cannot be read", lambda: self._memory.processes(self._handle(gpu_uuid))
        )

    def epoch(self) -> str:
        """Boot, load of the kernel module, NVML session: what is believed of a GPU's settings dies with it.

        Needs no NVML, and is the same text after a restart of this program if nothing was lost.
        """
        if self._boot_id is None:
            self._boot_id = sysfs.boot_id(self._proc)
        return f"boot {self._boot_id} driver {sysfs.module_identity(self._sysfs)} session {self._session}"

    def outlived(self) -> str:
        """Why this process can ask NVML no more: its library is that of a driver which was replaced; '' while it can.

        A library stays what it is for as long as the process lives; only a new one can load another.
        """
        if not self._mismatch or self._loaded is None:
            return ""
        library = self._library() if callable(self._library) else self._library
        if library in (None, self._loaded):
            return ""
        return (
            f"{self._loaded}, which is loaded here, does not fit the NVIDIA driver that the kernel runs, and "
            f"{library} is there: this driver ends, to be started again with that"
        )

    def close(self) -> None:
        """End the NVML session. Idempotent; never raises."""
        with self._lock:
            was_ready, self._ready = self._ready, False
            self._migs.forget()
        if was_ready:
            self._shutdown()
        self._threads.close()

    def _control(self, gpu_uuid: str, problem: str, action: Callable[[], _T]) -> _T:
        try:
            return self._threads.run(lambda: self._in_session(action), self._call_timeout_s)
        except TimeoutError as error:
            raise ControlTimeout(f"GPU {gpu_uuid}: {problem}: NVML: {error}") from error
        except DriverNotReady as error:
            raise ControlGone(f"GPU {gpu_uuid}: {problem}: {error}") from error
        except ControlError as error:
            raise type(error)(f"GPU {gpu_uuid}: {problem}: {error}") from error

    def _in_session(self, action: Callable[[], _T]) -> _T:
        """Run in an NVML session; once more in a new one when the old one turns out to be lost."""
        fresh = self._open()
        try:
            return action()
        except DriverNotReady:
            if fresh:
                raise
            self._open()
            return action()

    def _handle(self, gpu_uuid: str) -> Any:
        # Asked for each time: a handle kept over a reset or a MIG change may stand for another card.
        try:
            return self._call("nvmlDeviceGetHandleByUUID", gpu_uuid)
        except NotFound as error:
            raise ControlGone(f"no such GPU on this node any more ({error})") from error

    def _scan(self) -> Inventory:
        self._reopen_for_missing_gpu()
        found = self._in_session(self._read_inventory)
        if not found.gpus:
            # A session lists the cards that were there when it began.
            self._lose(self._session, "it shows no GPU", logging.DEBUG)
        elif not sysfs.bound_to_nvidia(self._sysfs) <= {gpu.pci_bus_id for gpu in found.gpus}:
            self._missing_gpu = True
        return found

    def _reopen_for_missing_gpu(self) -> None:
        """A card that came later, or was lost and then reset, is seen by a new session only: try, ever more rarely."""
        if not self._missing_gpu:
            self._scans_until_reopen = self._reopen_after = 1
            return
        self._missing_gpu = False
        self._scans_until_reopen -= 1
        if self._scans_until_reopen <= 0:
            self._reopen_after = min(2 * self._reopen_after, _MOST_SCANS_UNTIL_REOPEN)
            self._scans_until_reopen = self._reopen_after
            self._lose(self._session, "a GPU of this node is missing in it")

    def _read_inventory(self) -> Inventory:
        driver = DriverInfo(
            driver_version=str(self._call("nvmlSystemGetDriverVersion")),
            cuda_driver_version=self._system_fact("nvmlSystemGetCudaDriverVersion_v2"),
            nvml_version=self._system_fact("nvmlSystemGetNVMLVersion"),
        )
        gpus: list[Gpu] = []
        migs: list[MigDevice] = []
        for index in range(int(self._call("nvmlDeviceGetCount"))):
            try:
                handle = self._call("nvmlDeviceGetHandleByIndex", index)
                gpu = self._gpus.read(index, handle)
                on_gpu = self._migs.read(gpu, handle) if gpu.mig_enabled else ()
            except ControlError as error:
                left_out(self._once, index, error)
                continue
            found_again(self._once, index)
            gpus.append(gpu)
            migs.extend(on_gpu)
        gpus.sort(key=lambda gpu: gpu.pci_bus_id)
        migs.sort(key=lambda mig: (mig.parent.pci_bus_id, mig.placement_start, mig.profile_id))
        return Inventory(driver=driver, gpus=tuple(gpus), mig_devices=tuple(migs))

    def _system_fact(self, name: str) -> Any:
        try:
            return self._call(name)
        except ControlError as error:
            self._once.say(logging.WARNING, f"{name} gives nothing: {error}")
            return None

    def _open(self) -> bool:
        """Start an NVML session unless there is one; whether it was started now."""
        with self._lock:
            if self._ready:
                return False
            self._preload()
            # Without the flag NVML refuses to start on a node whose cards are not bound to the driver yet.
            try:
                self._call("nvmlInitWithFlags", self._api.NVML_INIT_FLAG_NO_GPUS)
            except ControlError as error:
                raise DriverNotReady(f"NVML cannot be initialised: {error}") from error
            self._ready, self._mismatch = True, False
            return True

    def _preload(self) -> None:
        """Load the library by its path, so that pynvml's search by SONAME finds it already there."""
        library = self._library() if callable(self._library) else self._library
        if library is None:
            return
        try:
            ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise DriverAbsent(f"{library} cannot be loaded: {error}") from error
        self._loaded = self._loaded or library

    def _call(self, name: str, *args: Any) -> Any:
        function = getattr(self._api, name, None)
        if function is None:
            raise FunctionMissing(f"{name}: not in this pynvml")
        session = self._session
        try:
            value = function(*args)
        except self._api.NVMLError as error:
            raise self._translated(name, error, session) from error
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else value

    def _translated(self, name: str, error: Any, session: int) -> ControlError | DriverNotReady:
        code, text = error.value, f"{name}: {error}"
        if code in _NO_DRIVER:
            self._mismatch = code == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
            self._lose(session, text)
            kind = DriverAbsent if code in _ABSENT else DriverNotReady
            return kind(f"{_NO_DRIVER[code]} ({text})")
        if code in _GONE:
            self._missing_gpu = True
            return ControlGone(text)
        if code == pynvml.NVML_ERROR_NOT_SUPPORTED:
            return NotSupported(text)
        if code == pynvml.NVML_ERROR_FUNCTION_NOT_FOUND:
            return FunctionMissing(text)
        if code in (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_GPU_NOT_FOUND):
            return NotFound(text)
        return ControlError(text)

    def _lose(self, session: int, reason: str, level: int = logging.WARNING) -> None:
        """End a session that has become useless: the next call starts another, and the epoch changes.

        An error that comes late, out of a session that was given up already, costs the new one nothing.
        """
        with self._lock:
            if not self._ready or session != self._session:
                return
            self._ready = False
            self._session += 1
            self._migs.forget()
        log.log(level, "NVML session is over: %s", reason)
        self._shutdown()

    def _shutdown(self) -> None:
        try:
            self._api.nvmlShutdown()
        except self._api.NVMLError as error:
            log.debug("nvmlShutdown: %s", error)
