"""Every error the driver raises on purpose, as one tree.

DriverError
 ├─ SettingError        a flag, file or environment variable is wrong; ends the start with exit code 2
 ├─ ClaimError          this claim cannot be prepared; the text reaches the pod's event
 │   ├─ BadConfig       its opaque parameters are wrong, or ask for what is switched off
 │   ├─ ClaimNotFound   the API server has no such claim, or another one under its name
 │   ├─ NotAllocated    the claim has no allocation yet
 │   ├─ UnknownDevice   an allocated device is not (or no longer) on this node
 │   └─ DeviceBusy      another claim holds the device, or its settings
 ├─ DriverNotReady      NVML or the GPUs are not there yet; asking again may help
 │   └─ DriverAbsent    there is no NVIDIA driver to ask: not installed, or not loaded
 ├─ ControlError        a setting of the GPU could not be read or changed
 │   ├─ ControlRefused      the driver was told to observe only
 │   ├─ ControlUnsupported  this GPU has no such setting
 │   ├─ ControlTimeout      the tool did not answer in time
 │   └─ ControlGone         the NVIDIA driver is not loaded, the tool is missing or the GPU has left
 ├─ MpsError            an MPS control daemon cannot be started, or not be ended
 │   └─ MpsStarting         it does not serve yet, and may soon: what was begun is kept for the next call
 ├─ CdiError            a file that the container needs is missing, or the spec cannot be written
 ├─ StateError          the state database cannot be used
 │   └─ StateDamaged        what is read from it is not what was written
 ├─ LockTimeout         another call, or another instance of the driver, held the claim or the GPU for too long
 └─ ApiError            the API server refused or could not be reached
     └─ ApiUnreachable  no answer at all, or one that says to come back later

Edges translate the errors of their libraries into these at the border, with ``raise ... from``.
"""

from typing import ClassVar


class DriverError(Exception):
    """Root of the tree. ``kind`` is a short fixed word, used as a metric label."""

    kind: ClassVar[str] = "internal"


class SettingError(DriverError):
    """A setting is wrong: the text names the setting, the value found and the values allowed."""

    kind = "setting"


class ClaimError(DriverError):
    """One claim cannot be prepared."""

    kind = "claim"


class BadConfig(ClaimError):
    """The claim's effective configuration cannot be applied."""

    kind = "bad_config"


class ClaimNotFound(ClaimError):
    """No claim of that name and UID in the API server."""

    kind = "claim_not_found"


class NotAllocated(ClaimError):
    """The claim carries no allocation result."""

    kind = "not_allocated"


class UnknownDevice(ClaimError):
    """An allocated device is not on this node."""

    kind = "unknown_device"


class DeviceBusy(ClaimError):
    """Another claim holds the device; the text names the holder."""

    kind = "device_busy"


class DriverNotReady(DriverError):
    """NVML cannot be loaded or initialised, or no GPU is bound to the driver yet."""

    kind = "not_ready"


class DriverAbsent(DriverNotReady):
    """No NVIDIA driver is installed or loaded: nothing here can use a GPU, whatever was there before."""


class ControlError(DriverError):
    """A GPU setting could not be read or changed; the text names the GPU and the setting."""

    kind = "gpu_control"


class ControlRefused(ControlError):
    """A change is needed and the driver runs with ``--gpu-control=observe``."""

    kind = "gpu_control_refused"


class ControlUnsupported(ControlError):
    """The GPU does not have this setting."""

    kind = "gpu_control_unsupported"


class ControlTimeout(ControlError):
    """The tool was ended because it did not answer within its time limit."""

    kind = "gpu_control_timeout"


class ControlGone(ControlError):
    """There is nothing left to set: driver unloaded, tool missing, GPU lost."""

    kind = "gpu_control_gone"


class MpsError(DriverError):
    """An MPS control daemon cannot be started or ended; the text names it and what is in the way."""

    kind = "mps"


class MpsStarting(MpsError):
    """The daemon does not serve yet; the text says what it waits for. Asking again goes on from there."""

    kind = "mps_starting"


class CdiError(DriverError):
    """A CDI spec cannot be made whole or cannot be written; the text names the path."""

    kind = "cdi"


class StateError(DriverError):
    """The state database is damaged, of another version, or cannot be written."""

    kind = "state"


class StateDamaged(StateError):
    """The state database does not hold what was written into it."""


class LockTimeout(DriverError):
    """The claim or the GPU was held by another call for too long; the kubelet asks again."""

    kind = "lock_acquire"


class ApiError(DriverError):
    """The API server answered with an error. ``status`` is the HTTP code, 0 when there was no answer."""

    kind = "api"

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class ApiUnreachable(ApiError):
    """No answer, or one that asks to come back later (HTTP 429, 5xx): worth a retry."""

    kind = "api_unreachable"
