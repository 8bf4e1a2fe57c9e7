"""``dra-driver inventory``: the GPUs of this node or of a scenario, and the ResourceSlices that come of them."""

import argparse
import contextlib
import os
import sys
from pathlib import Path
from typing import Any

from dra_driver import settings
from dra_driver.commands import offered
from dra_driver.commands.output import write, write_json, write_table, write_yaml
from dra_driver.features import CONSUMABLE_SHARES
from dra_driver.hostfs import find_library
from dra_driver.model.devices import Device, Gpu, Inventory, MigDevice
from dra_driver.model.errors import SettingError
from dra_driver.ports import DeviceSource
from dra_driver.slices.build import name_prefix, slice_objects

_DESCRIPTION = """\
Show what the driver sees on this node through NVML, or what a simulated node has. The GPUs' settings
are only read. 'slices' prints the ResourceSlices that the driver would publish now, for kubectl apply:
with the same settings of sharing and hooks, and with the claims that it has prepared here in mind."""

_EPILOG = """\
examples:
  dra-driver inventory
  dra-driver inventory -o json | jq -r '.gpus[].uuid'
  dra-driver inventory --simulated-node a100x8-mig -o slices --node-name gpu-node-1
  dra-driver inventory -o slices --feature-gates ConsumableShares=true --consumable-shares 10

Exit codes: 0 shown, 1 the NVIDIA driver or the API server cannot be asked, 2 wrong usage."""

_SETTINGS = frozenset({"node_name", "simulated_node", "driver_root", "container_driver_root"})
_COLUMNS = ("DEVICE", "PRODUCT", "MEMORY", "ARCHITECTURE", "PCI BUS ID", "NUMA", "COMPUTE MODE", "UUID")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the format, the settings that say where the GPUs are, and those of sharing."""
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    formats = ("table", "json", "yaml", "slices")
    parser.add_argument("-o", "--output", choices=formats, default="table", help="default: table")
    settings.add_options(parser, only=_SETTINGS | offered.SETTINGS, optional={"node_name": "this host's name"})


def run(options: argparse.Namespace) -> int:
    """Print the inventory. Raises DriverNotReady when NVML cannot be used, SettingError for a bad scenario."""
    # How devices are shared is no matter of what the node has.
    chosen = _SETTINGS | offered.SETTINGS if options.output == "slices" else _SETTINGS
    read = settings.load(options, only=chosen, optional={"node_name"})
    shared = CONSUMABLE_SHARES in read.gates
    with offered.limited_source(read) if shared else contextlib.closing(_source(read)) as source:
        inventory = source.scan()
    match options.output:
        case "json":
            write_json(as_json(inventory))
        case "yaml":
            write_yaml(as_json(inventory))
        case "slices":
            write_yaml(_slices(inventory, read.node_name or _host_name(), read))
        case _:
            _write_table(inventory)
    return 0


def as_json(inventory: Inventory) -> dict[str, Any]:
    """The inventory as plain data: ``driver``, ``gpus``, ``migDevices``, keys in camelCase, None for unknown facts."""
    return {
        "driver": _fields(inventory.driver),
        "gpus": [_device(gpu) for gpu in inventory.gpus],
        "migDevices": [_device(device) for device in inventory.mig_devices],
    }


def _source(read: settings.Settings) -> DeviceSource:
    if read.simulated_node is not None:
        from dra_driver.devices.simulated import SimulatedNode

        return SimulatedNode.load(read.simulated_node, seed=read.node_name).source()
    from dra_driver.devices.nvml import NvmlSource

    seen_root = settings.roots(read).container_driver_root
    return NvmlSource(find_library(seen_root, "libnvidia-ml.so.1"), Path("/sys"))


def _slices(inventory: Inventory, node_name: str, read: settings.Settings) -> dict[str, Any]:
    """The slices as a List. They get fixed names and no owner, as there is no Node to ask the API server for."""
    pool, notes = offered.offered(inventory, node_name, read)
    items = slice_objects(pool, node_name, node_uid="", generation=1)
    for index, item in enumerate(items):
        item["metadata"] = {"name": name_prefix(index, node_name).rstrip("-.")}
    for note in notes:
        print(f"note: {note}", file=sys.stderr)  # noqa: T201
    return {"apiVersion": "v1", "kind": "List", "items": items}


def _write_table(inventory: Inventory) -> None:
    write(f"NVIDIA driver {inventory.driver.driver_version}")
    if not inventory.gpus:
        write("No GPU is bound to it.")
        return
    rows: list[tuple[object, ...]] = []
    for gpu in inventory.gpus:
        rows.append(_gpu_row(gpu))
        rows.extend(_mig_row(device) for device in inventory.mig_devices if device.parent.uuid == gpu.uuid)
    write_table(_COLUMNS, rows)


def _gpu_row(gpu: Gpu) -> tuple[object, ...]:
    product = f"{gpu.product_name} (in MIG mode, not offered whole)" if gpu.mig_enabled else gpu.product_name
    mode = None if gpu.compute_mode is None else gpu.compute_mode.name
    memory = _mebibytes(gpu.memory_bytes)
    return (gpu.name, product, memory, gpu.architecture, gpu.pci_bus_id, gpu.numa_node, mode, gpu.uuid)


def _mig_row(device: MigDevice) -> tuple[object, ...]:
    return (device.name, device.profile, _mebibytes(device.memory_bytes), None, None, None, None, device.uuid)


def _mebibytes(amount: int | None) -> str | None:
    return None if amount is None else f"{amount // 2**20} MiB"


def _device(device: Device) -> dict[str, Any]:
    fields = {"name": device.name} | _fields(device)
    # Not looked at here: it is found out by who serves claims.
    fields.pop("memoryLimits", None)
    if isinstance(device, MigDevice):
        fields["parent"] = device.parent.name
        fields["parentUuid"] = device.parent.uuid
    elif device.compute_mode is not None:
        fields["computeMode"] = device.compute_mode.name
    return fields


def _fields(value: Any) -> dict[str, Any]:
    """Fields of a dataclass by their camelCase names."""
    return {_camel(name): getattr(value, name) for name in value.__dataclass_fields__}


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _host_name() -> str:
    from dra_driver.settings import parsers

    name = os.uname().nodename.lower()
    try:
        return parsers.node_name(name)
    except ValueError as error:
        raise SettingError(f'--node-name is required: the host\'s own name "{name}" {error}') from error
