"""The shape of one NVML call and the errors it can end in, for the readers that may not see pynvml."""

from typing import Any, Protocol

from dra_driver.model.errors import ControlError, ControlUnsupported


class NotSupported(ControlUnsupported):
    """The driver knows the call, this GPU does not have what it asks for."""


class FunctionMissing(ControlUnsupported):
    """The driver (or pynvml) is older than the call."""


class NotFound(ControlError):
    """NVML knows no such device, MIG slot or instance."""


class Call(Protocol):
    """One NVML call by its pynvml name; bytes come back as str.

    Raises NotSupported, FunctionMissing, NotFound, ControlGone (GPU lost) or ControlError for this GPU, and
    DriverNotReady when NVML itself cannot be used.
    """

    def __call__(self, name: str, *args: Any) -> Any:
        """Make the call."""
