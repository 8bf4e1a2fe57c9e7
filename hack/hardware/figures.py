"""Figures of the driver itself on real NVML: its start, claims prepared over its socket, and its memory."""

import time
from collections.abc import Sequence
from functools import partial
from typing import Final

from dra_driver_api import names
from hack.bench import objects
from hack.bench.kubelet import Plugin
from hack.bench.objects import Claim, Device
from hack.bench.samples import quantile
from hack.cluster.driver import Driver, is_whole
from hack.hardware.errors import HardwareError
from hack.hardware.findings import Findings
from hack.hardware.pods import wait
from hack.hardware.stage import Stage

STARTS: Final = 5
CALLS: Final = 100

_MANY: Final = 250
_TIMES: Final = 4
"""Calls that are made only to see whether memory grows with them."""

_CLAIMS: Final = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"


def starts(stage: Stage, findings: Findings) -> None:
    """f: from the start of the process until its slices are in the API server; memory of the idle driver."""
    seconds = []
    for _ in range(STARTS):
        driver = stage.make_driver()
        stage.forget_slices()
        began = time.perf_counter()
        driver.start()
        wait(partial(_has_published, driver), lambda: "the driver publishes no slices")
        seconds.append(time.perf_counter() - began)
    stage.wait_driver()
    findings.facts["starts_s"] = [round(each, 3) for each in seconds]
    _remember(stage, findings, 0)
    findings.facts["devices"] = stage.devices()
    findings.facts["driver_files"] = stage.told("NVIDIA driver ")
    findings.facts["doctor"] = stage.doctor()


def prepares(stage: Stage, findings: Findings) -> None:
    """f: claims prepared and unprepared over the driver's socket, one after the other, as the kubelet would."""
    plugin = Plugin(stage.node.plugins_directory / names.DRIVER_NAME / "dra.sock")
    device = Device(stage.node.name, stage.devices()[0]["name"])
    calls = 0
    try:
        for sharing in (objects.PLAIN, objects.UNCHANGED):
            made = _allocated_by_hand(stage, f"f-{sharing.split()[0].lower()}", device, sharing)
            first, later = _timed(plugin, made, 1), _timed(plugin, made, CALLS)
            findings.facts.setdefault("calls_ms", {})[sharing] = {
                "first prepare": _ms(first["prepare"]),
                **{operation: _ms(each) for operation, each in later.items()},
            }
            stage.pods.delete((), [made.name])
            calls += CALLS + 1
            _remember(stage, findings, calls)
        made = _allocated_by_hand(stage, "f-many", device, objects.PLAIN)
        for _ in range(_TIMES):
            _timed(plugin, made, _MANY)
            calls += _MANY
            _remember(stage, findings, calls)
        stage.pods.delete((), [made.name])
        empty = []
        for _ in range(CALLS):
            began = time.perf_counter()
            plugin.empty_call()
            empty.append(time.perf_counter() - began)
        findings.facts["calls_ms"]["empty call"] = _ms(empty)
    finally:
        plugin.close()
    left = stage.left_behind()
    findings.check("f", f"claims prepared and unprepared {calls} times, nothing left", not left, left or "nothing")


def _remember(stage: Stage, findings: Findings, claims: int) -> None:
    """Memory of the driver, in MiB, after so many claims were prepared and unprepared."""
    found = {"claims": claims, **stage.memory()}
    findings.facts.setdefault("memory_mib", []).append(found)


def _has_published(driver: Driver) -> bool:
    return is_whole(driver.slices())


def _allocated_by_hand(stage: Stage, name: str, device: Device, sharing: str) -> Claim:
    """A claim that no pod uses, with the allocation that the scheduler would make."""
    created = stage.cluster.api.request("POST", _CLAIMS, objects.claim(name, "hardware", sharing))
    status = objects.allocated(created, device, stage.node.name, sharing)
    stage.cluster.api.request("PUT", f"{_CLAIMS}/{name}/status", status)
    return Claim("default", name, created["metadata"]["uid"])


def _timed(plugin: Plugin, made: Claim, calls: int) -> dict[str, list[float]]:
    """Seconds of each call. Raises HardwareError when one fails."""
    found: dict[str, list[float]] = {"prepare": [], "unprepare": []}
    for _ in range(calls):
        for operation, call in (("prepare", plugin.prepare), ("unprepare", plugin.unprepare)):
            began = time.perf_counter()
            trouble = call(made)
            found[operation].append(time.perf_counter() - began)
            if trouble:
                raise HardwareError(f"{operation} of claim {made.name}: {trouble}")
    return found


def _ms(seconds: Sequence[float]) -> dict[str, float]:
    values = {"p50": quantile(seconds, 0.5), "p90": quantile(seconds, 0.9), "max": max(seconds)}
    return {name: round(1000 * (value or 0.0), 2) for name, value in values.items()}
