"""Writes the driver tree of a simulated node: libraries, programs, device nodes, capability files, state folders.

Laid out as NVIDIA's driver is on a host, so that what looks for driver files finds them where it would there.
"""

import fcntl
import hashlib
import os
import shutil
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from dra_driver.devices.elf import shared_object
from dra_driver.devices.simulated_cards import Card

_LIBRARIES: Final = (
    ("libcuda", "1"),
    ("libcudadebugger", "1"),
    ("libnvcuvid", "1"),
    ("libnvidia-allocator", "1"),
    ("libnvidia-cfg", "1"),
    ("libnvidia-encode", "1"),
    ("libnvidia-gpucomp", ""),
    ("libnvidia-ml", "1"),
    ("libnvidia-nvvm", "4"),
    ("libnvidia-opencl", "1"),
    ("libnvidia-opticalflow", "1"),
    ("libnvidia-pkcs11-openssl3", ""),
    ("libnvidia-ptxjitcompiler", "1"),
)
"""Library and the number in its SONAME; '' for those whose SONAME is the driver's version."""

_PROGRAMS: Final = ("nvidia-debugdump", "nvidia-persistenced")
_MPS_PROGRAMS: Final = ("nvidia-cuda-mps-control", "nvidia-cuda-mps-server")
_FIRMWARE: Final = ("gsp_ga10x.bin", "gsp_tu10x.bin")

NVIDIA_MAJOR: Final = 195
UVM_MAJOR: Final = 238
CAPS_MAJOR: Final = 237
_COMMON_NODES: Final = (
    ("nvidiactl", NVIDIA_MAJOR, 255),
    ("nvidia-modeset", NVIDIA_MAJOR, 254),
    ("nvidia-uvm", UVM_MAJOR, 0),
    ("nvidia-uvm-tools", UVM_MAJOR, 1),
)
_PROC_DEVICES: Final = f"""\
Character devices:
{NVIDIA_MAJOR} nvidia
{NVIDIA_MAJOR} nvidia-modeset
{NVIDIA_MAJOR} nvidiactl
{CAPS_MAJOR} nvidia-caps
{UVM_MAJOR} nvidia-uvm
"""

# The nvidia module numbers its capability devices in blocks: two for MIG itself, then for each GPU 15 GPU
# instances of 9 each: the instance and its 8 compute instances.
_CAPS_BASE: Final = 3
_CAPS_PER_INSTANCE: Final = 9
_CAPS_PER_GPU: Final = 15 * _CAPS_PER_INSTANCE
_CAPABILITIES: Final = "proc/driver/nvidia/capabilities"

STATE: Final = "var/state"
CALL_LOG: Final = "var/log/nvidia-smi.calls"
_STAMP: Final = f"{STATE}/tree"


def write_tree(
    root: Path,
    version: str,
    cards_now_and_later: tuple[Sequence[Card], Sequence[Card]],
    tool: str | None,
    executable: bool = True,
    mps: str | None = None,
) -> None:
    """Write what is not there yet below ``root``; state that is there is kept.

    cards_now_and_later: those that the node starts with, and what its scenario turns them into.
    tool: text of nvidia-smi, mps: of the two programs of MPS; None leaves them out. A tree that was written for the
    same input is left as it is, also where someone took files away since. Raises OSError.
    """
    stamp = _digest(version, cards_now_and_later, tool, executable, mps)
    if _is(root / _STAMP, stamp):
        return
    (root / STATE).mkdir(parents=True, exist_ok=True)
    with (root / STATE / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _write_all(root, version, cards_now_and_later, tool, executable, mps)
        _write(root / _STAMP, stamp)


def _write_all(
    root: Path,
    version: str,
    cards_now_and_later: tuple[Sequence[Card], Sequence[Card]],
    tool: str | None,
    executable: bool,
    mps: str | None,
) -> None:
    now, later = cards_now_and_later
    cards = (*now, *later)
    _write_state(root, cards)
    _write(root / STATE / "gpus", "".join(f"{c.gpu.uuid} {c.gpu.minor} {c.gpu.product_name}\n" for c in now))
    _write_libraries(root / "usr" / "lib64", version)
    for name in _FIRMWARE:
        _write(root / "usr/lib/firmware/nvidia" / version / name, "simulated\n")
    _write_programs(root / "usr" / "bin", tool, executable, mps)
    _write_device_nodes(root / "dev", cards)
    _write(root / "proc" / "devices", _PROC_DEVICES)
    _write(root / "sys/fs/cgroup/cgroup.controllers", "memory pids\n")
    _write_capabilities(root, _capabilities(cards))


def keep_capabilities(root: Path, cards: Sequence[Card]) -> None:
    """Leave capability files of the MIG devices that these cards have now, and of no others. Raises OSError.

    As the kernel has them: those of a GPU instance come and go with it. Device nodes stay, as they do on a host.
    """
    folder = root / _CAPABILITIES
    if not folder.exists() and not any(card.mig_devices for card in cards):
        return
    wanted = dict(_capabilities([card for card in cards if card.gpu.mig_enabled]))
    instances = {(root / path).parent for path in wanted}
    for found in folder.glob("gpu*/mig/gi*"):
        if found not in instances:
            shutil.rmtree(found, ignore_errors=True)
    _write_capabilities(root, ((path, minor) for path, minor in wanted.items() if not (root / path).exists()))


def _write_capabilities(root: Path, capabilities: Iterable[tuple[str, int]]) -> None:
    for path, minor in capabilities:
        _write(root / path, f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n")
        _node(root / "dev/nvidia-caps" / f"nvidia-cap{minor}", CAPS_MAJOR, minor, 0o444)


def _write_state(root: Path, cards: Sequence[Card]) -> None:
    for card in cards:
        folder = root / STATE / card.gpu.uuid
        folder.mkdir(parents=True, exist_ok=True)
        mode = card.gpu.compute_mode
        _write(folder / "compute_mode", f"{mode.name.title() if mode else 'Default'}\n", keep=True)
        _write(folder / "time_slice", "0\n", keep=True)
    # Cards of a tree that is made anew are those of a driver that was loaded anew.
    _write(root / STATE / "epoch", f"{time.time_ns()}\n", keep=True)
    _write(root / CALL_LOG, "", keep=True)


def _write_libraries(folder: Path, version: str) -> None:
    for name, number in _LIBRARIES:
        real = f"{name}.so.{version}"
        soname = f"{name}.so.{number}" if number else real
        _write(folder / real, shared_object(soname))
        if number:
            _link(folder / soname, real)
            _link(folder / f"{name}.so", soname)
        else:
            _link(folder / f"{name}.so", real)


def _write_programs(folder: Path, tool: str | None, executable: bool, mps: str | None) -> None:
    for name in _PROGRAMS:
        _write(folder / name, "#!/bin/sh\nexit 0\n", mode=0o755)
    for name in _MPS_PROGRAMS:
        if mps is None:
            (folder / name).unlink(missing_ok=True)
        else:
            _write(folder / name, mps, mode=0o755)
    smi = folder / "nvidia-smi"
    if tool is None:
        smi.unlink(missing_ok=True)
    else:
        _write(smi, tool, mode=0o755 if executable else 0o644)


def _write_device_nodes(folder: Path, cards: Iterable[Card]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, major, minor in _COMMON_NODES:
        _node(folder / name, major, minor)
    for card in cards:
        _node(folder / f"nvidia{card.gpu.minor}", NVIDIA_MAJOR, card.gpu.minor)


def _capabilities(cards: Iterable[Card]) -> Iterator[tuple[str, int]]:
    """(access file, device minor) of each GPU instance and compute instance, and of MIG itself."""
    with_mig = [card for card in cards if card.mig_devices]
    if with_mig:
        yield f"{_CAPABILITIES}/mig/config", 1
        yield f"{_CAPABILITIES}/mig/monitor", 2
    for card in with_mig:
        for device in card.mig_devices:
            folder = f"{_CAPABILITIES}/gpu{card.gpu.minor}/mig/gi{device.gpu_instance_id}"
            block = _CAPS_BASE + card.gpu.minor * _CAPS_PER_GPU + device.gpu_instance_id * _CAPS_PER_INSTANCE
            yield f"{folder}/access", block
            yield f"{folder}/ci{device.compute_instance_id}/access", block + 1 + device.compute_instance_id


def _node(path: Path, major: int, minor: int, mode: int = 0o666) -> None:
    """A character device, or an empty file where this process may not make one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.mknod(path, stat.S_IFCHR | mode, os.makedev(major, minor))
        path.chmod(mode)
    except FileExistsError:
        return
    except OSError:
        _write(path, "")


def _write(path: Path, text: str | bytes, mode: int = 0o644, keep: bool = False) -> None:
    if keep and path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    content = text.encode() if isinstance(text, str) else text
    # Not into the old file: the tool may be running, and a running program cannot be written to.
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        os.fchmod(descriptor, mode)


def _link(path: Path, target: str) -> None:
    if not path.is_symlink():
        path.symlink_to(target)


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest() + "\n"


def _is(path: Path, text: str) -> bool:
    try:
        return path.read_text() == text
    except OSError:
        return False
