"""Plans and prepared devices as JSON text for the state store, and back. Pure.

Reading is lenient: keys that this version does not know are dropped, missing ones take their default, so that a
database can be read by the version before and after.
"""

import json
from dataclasses import fields
from typing import Any

from dra_driver.model.devices import ComputeMode
from dra_driver.model.mps import MpsDaemon
from dra_driver.model.plan import Plan, PreparedDevice, SetComputeMode, SetTimeSlice, StartMpsDaemon, Step

_DEVICE_FIELDS = tuple(sorted(field.name for field in fields(PreparedDevice)))
_TUPLES = ("requests", "cdi_ids")


def dump_devices(devices: tuple[PreparedDevice, ...]) -> str:
    """Prepared devices as compact JSON, in order."""
    raw = [{name: getattr(device, name) for name in _DEVICE_FIELDS} for device in devices]
    return json.dumps(raw, separators=(",", ":"))


def load_devices(text: str) -> tuple[PreparedDevice, ...]:
    """Devices from their text.

    Raises ValueError, TypeError, KeyError or AttributeError on text that is no list of devices.
    """
    return tuple(_device(raw) for raw in json.loads(text))


def _device(raw: dict[str, Any]) -> PreparedDevice:
    known: dict[str, Any] = {
        key: tuple(value) if key in _TUPLES else value for key, value in raw.items() if key in _DEVICE_FIELDS
    }
    known["consumed_capacity"] = tuple((name, amount) for name, amount in raw.get("consumed_capacity", ()))
    return PreparedDevice(**known)


def dump_steps(steps: tuple[Step, ...]) -> str:
    """Steps as compact JSON, in order."""
    return json.dumps([_dump_step(step) for step in steps], separators=(",", ":"))


def load_steps(text: str) -> tuple[Step, ...]:
    """Raises ValueError, TypeError or KeyError on text that is no list of steps."""
    return tuple(_load_step(raw) for raw in json.loads(text))


def make_plan(devices: str, steps: str) -> Plan:
    """A plan from its stored parts."""
    return Plan(devices=load_devices(devices), steps=load_steps(steps))


def _dump_step(step: Step) -> dict[str, Any]:
    match step:
        case SetComputeMode():
            return {
                "set": "compute_mode",
                "gpu": step.gpu_uuid,
                "device": step.device,
                "to": step.mode.name,
                "from": step.previous.name,
            }
        case SetTimeSlice():
            return {
                "set": "time_slice",
                "gpu": step.gpu_uuid,
                "device": step.device,
                "to": step.interval,
                "from": step.previous,
            }
        case StartMpsDaemon():
            return {"start": "mps_daemon", **step.daemon.dump()}


def _load_step(raw: dict[str, Any]) -> Step:
    if raw.get("start") == "mps_daemon":
        return StartMpsDaemon(daemon=MpsDaemon.load(raw))
    match raw["set"]:
        case "compute_mode":
            return SetComputeMode(
                gpu_uuid=raw["gpu"],
                device=raw["device"],
                mode=ComputeMode[raw["to"]],
                previous=ComputeMode[raw["from"]],
            )
        case "time_slice":
            return SetTimeSlice(gpu_uuid=raw["gpu"], device=raw["device"], interval=raw["to"], previous=raw.get("from"))
        case other:
            raise ValueError(f"unknown step {other!r}")
