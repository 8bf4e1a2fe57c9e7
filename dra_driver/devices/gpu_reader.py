"""Reads the facts of one GPU by NVML calls, and decides which of them a card cannot do without.

No pynvml here and no session handling: ``call`` comes from ``devices.nvml``.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from dra_driver.devices import sysfs, vocabulary
from dra_driver.devices.nvml_calls import Call
from dra_driver.model.devices import ComputeMode, Gpu
from dra_driver.model.errors import ControlError, ControlGone, ControlUnsupported

log = logging.getLogger(__name__)

_T = TypeVar("_T")


class OnceLog:
    """Says each thing once: a rescan every few seconds would repeat it for ever."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def say(self, level: int, text: str) -> None:
        """Log ``text`` unless it was logged before."""
        if text not in self._said:
            self._said.add(text)
            log.log(level, "%s", text)

    def say_optional(self, text: str, error: ControlError) -> None:
        """An optional fact is missing: quietly when the GPU or the driver simply does not have it."""
        self.say(logging.DEBUG if isinstance(error, ControlUnsupported) else logging.WARNING, text)

    def forget(self, beginning: str) -> None:
        """Texts that begin so may be said again: what they complained of is over."""
        self._said = {text for text in self._said if not text.startswith(beginning)}


def left_out(once: OnceLog, index: int, error: ControlError) -> None:
    """Say that a card is not offered since it cannot be identified; the others are not affected."""
    once.say(logging.ERROR, f"GPU at NVML index {index} is left out: {error}")


def found_again(once: OnceLog, index: int) -> None:
    """The card at this index can be read: a later failure is news again."""
    once.forget(f"GPU at NVML index {index} is left out")


class GpuReader:
    """Facts of a GPU by NVML handle."""

    def __init__(self, call: Call, sysfs_root: Path, once: OnceLog) -> None:
        self._call = call
        self._sysfs = sysfs_root
        self._once = once

    def read(self, index: int, handle: Any) -> Gpu:
        """All facts of one GPU.

        Raises ControlError, naming the fact, when its UUID, minor number or PCI address cannot be had: without them it
        has no name and no device node. The same when its MIG mode is there and cannot be read: taken for whole, the
        card would be offered beside its own MIG devices. A missing optional fact is None, ``Unknown`` for brand and
        architecture, '' for product name and compute capability, and is logged once.
        """
        uuid = str(self._required("UUID", "nvmlDeviceGetUUID", handle))
        minor = int(self._required("minor number", "nvmlDeviceGetMinorNumber", handle))
        pci = self._required("PCI address", "nvmlDeviceGetPciInfo_v3", handle)
        try:
            bus_id = vocabulary.pci_bus_id(_text(pci.busId))
        except ValueError as error:
            raise ControlError(f"PCI address: {error}") from error

        def optional(fact: str, name: str, convert: Callable[[Any], _T]) -> _T | None:
            return self._optional(f"GPU {uuid}: {fact}", name, handle, convert)

        return Gpu(
            index=index,
            minor=minor,
            uuid=uuid,
            pci_bus_id=bus_id,
            product_name=optional("product name", "nvmlDeviceGetName", str) or "",
            brand=optional("brand", "nvmlDeviceGetBrand", _brand) or vocabulary.UNKNOWN,
            architecture=optional("architecture", "nvmlDeviceGetArchitecture", _architecture) or vocabulary.UNKNOWN,
            cuda_compute_capability=optional(
                "CUDA compute capability", "nvmlDeviceGetCudaComputeCapability", _capability
            )
            or "",
            memory_bytes=optional("memory", "nvmlDeviceGetMemoryInfo", lambda info: int(info.total) or None),
            addressing_mode=optional("addressing mode", "nvmlDeviceGetAddressingMode", vocabulary.ADDRESSING_MODES.get),
            numa_node=sysfs.numa_node(self._sysfs, bus_id),
            pcie_root=sysfs.pcie_root(self._sysfs, bus_id),
            mig_enabled=self._mig_enabled(uuid, handle),
            compute_mode=optional("compute mode", "nvmlDeviceGetComputeMode", ComputeMode),
            persistence=optional("persistence mode", "nvmlDeviceGetPersistenceMode", bool),
        )

    def _mig_enabled(self, uuid: str, handle: Any) -> bool:
        try:
            modes = self._required("MIG mode", "nvmlDeviceGetMigMode", handle)
            return int(modes[0]) == 1
        except ControlUnsupported as error:
            self._once.say_optional(f"GPU {uuid}: {error}", error)
            return False
        except (ValueError, TypeError, IndexError) as error:
            raise ControlError(f"MIG mode: {error}") from error

    def _required(self, fact: str, name: str, handle: Any) -> Any:
        try:
            return self._call(name, handle)
        except ControlError as error:
            raise type(error)(f"{fact}: {error}") from error

    def _optional(self, what: str, name: str, handle: Any, convert: Callable[[Any], _T]) -> _T | None:
        try:
            return convert(self._call(name, handle))
        except ControlGone:
            # A lost card answers nothing: half of its facts would look like another kind of card.
            raise
        except ControlError as error:
            self._once.say_optional(f"{what} is left out: {error}", error)
        except (ValueError, TypeError, IndexError) as error:
            self._once.say(logging.WARNING, f"{what} is left out: {error}")
        return None


def _text(value: bytes | str) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else value


def _brand(number: int) -> str:
    return vocabulary.BRANDS.get(number, vocabulary.UNKNOWN)


def _architecture(number: int) -> str:
    return vocabulary.ARCHITECTURES.get(number, vocabulary.UNKNOWN)


def _capability(pair: tuple[int, int]) -> str:
    return f"{pair[0]}.{pair[1]}"
