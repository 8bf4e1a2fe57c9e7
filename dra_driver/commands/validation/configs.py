"""One opaque config: whether it is for this driver, decodes, fits its requests, and can be served."""

import difflib
from collections.abc import Sequence
from typing import Any

from dra_driver.claims.configs import GATES, Config, covers
from dra_driver.commands.validation.documents import Path
from dra_driver.commands.validation.findings import Findings
from dra_driver.commands.validation.requests import Request
from dra_driver.features import CONSUMABLE_SHARES, Gates, closest, is_built
from dra_driver_api.config import ConfigError, GpuConfig, MigDeviceConfig, decode
from dra_driver_api.names import DRIVER_NAME

_CLASS_KINDS = {
    "gpu.nvidia.com": (GpuConfig, "gpu"),
    "mig.nvidia.com": (MigDeviceConfig, "mig"),
    "vfio.gpu.nvidia.com": (None, "vfio"),
}
"""DeviceClasses of the driver -> the config that fits their devices, and the devices' type."""
_MISSPELT = 0.8


def check_config(
    path: Path,
    entry: Any,
    requests: Sequence[Request] | None,
    findings: Findings,
    gates: Gates | None,
    *,
    from_template: bool = False,
) -> None:
    """One entry of ``config``. requests: those of the claim, None in a DeviceClass, which has none."""
    if not isinstance(entry, dict):
        findings.error(path, "want an object with opaque")
        return
    opaque = entry.get("opaque")
    if not isinstance(opaque, dict):
        findings.error(path, "only opaque parameters are supported: want an object under opaque")
        return
    if not _is_ours((*path, "opaque", "driver"), opaque.get("driver"), findings):
        return
    named = _named_requests(path, entry, requests, findings)
    parameters = opaque.get("parameters")
    at: Path = (*path, "opaque", "parameters")
    if not isinstance(parameters, dict):
        findings.error(at, "want an object with apiVersion and kind")
        return
    config = check_parameters(at, parameters, findings, gates)
    if config is None or requests is None or named is None:
        return
    covered = [request for request in requests if not named or covers(named, request.name)]
    _check_fit(path, config, covered, named, findings)
    if config.sharing is None:
        return
    strategy_path: Path = (*at, "sharing", "strategy")
    _check_admin_access(strategy_path, covered, findings)
    if from_template and not (gates and CONSUMABLE_SHARES in gates):
        findings.note(
            strategy_path,
            "each Pod gets a claim of its own from a template, and so a GPU of its own; for Pods to share one GPU, "
            "make one ResourceClaim and name it in each Pod's resourceClaimName, or have the driver offer its GPUs in "
            f"shares (feature gate {CONSUMABLE_SHARES} and --consumable-shares)",
        )


def check_parameters(path: Path, parameters: dict[str, Any], findings: Findings, gates: Gates | None) -> Config | None:
    """Decode strictly, then see whether the driver serves the strategy. None when it does not decode."""
    findings.checked += 1
    try:
        config = decode(parameters)
    except ConfigError as error:
        findings.error((*path, *error.path), str(error))
        return None
    if config.sharing is not None:
        _check_strategy((*path, "sharing", "strategy"), config.sharing.strategy, findings, gates)
    return config


def _check_strategy(path: Path, strategy: str, findings: Findings, gates: Gates | None) -> None:
    gate = GATES[strategy]
    if not is_built(gate):
        findings.note(path, f"this version of the driver does not serve strategy {strategy}, it will refuse the claim")
    elif gates is None:
        findings.note(path, f"needs the driver's feature gate {gate}=true, which is off by default")
    elif gate not in gates:
        findings.error(
            path,
            f"error validating GPU config: unknown GPU sharing strategy: {strategy}; "
            f"the feature gate {gate} is off, set {gate}=true on the driver",
        )


def _is_ours(path: Path, driver: Any, findings: Findings) -> bool:
    """Whether the config is for this driver; a name that is almost its name is an error, others are skipped."""
    if driver == DRIVER_NAME:
        return True
    text = str(driver or "")
    folded = text.lower()
    alike = difflib.SequenceMatcher(None, folded, DRIVER_NAME).ratio() >= _MISSPELT
    if not text:
        findings.error(path, f"is missing, {DRIVER_NAME} for this driver")
    elif alike or folded in ("nvidia.com/gpu", "nvidia", "gpu"):
        findings.error(path, f'"{text}" is not this driver\'s name, did you mean {DRIVER_NAME}?')
    else:
        findings.note(path, f'config for driver "{text}" skipped')
    return False


def _named_requests(
    path: Path, entry: dict[str, Any], requests: Sequence[Request] | None, findings: Findings
) -> list[str] | None:
    """The requests that an entry names, [] for all; None when the list itself is wrong."""
    named = entry.get("requests")
    at: Path = (*path, "requests")
    if named is None:
        return []
    if requests is None:
        findings.error(at, "a DeviceClass has no requests to name")
        return None
    if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
        findings.error(at, "want a list of request names")
        return None
    known = sorted({name for request in requests for name in (request.main, request.name)})
    for index, name in enumerate(named):
        if name not in known:
            near = closest(name, known)
            hint = f", did you mean {near}?" if near else f", requests: {', '.join(known) or 'none'}"
            findings.error((*at, index), f'the claim has no request "{name}"{hint}')
    return [name for name in named if name in known] if named else []


def _check_fit(
    path: Path, config: Config, covered: Sequence[Request], named: Sequence[str], findings: Findings
) -> None:
    """Whether the config's kind fits the devices, as far as the driver's own DeviceClasses tell."""
    kind_path: Path = (*path, "opaque", "parameters", "kind")
    misfits = [
        request
        for request in covered
        if request.device_class in _CLASS_KINDS and type(config) is not _CLASS_KINDS[request.device_class][0]
    ]
    if named:
        for request in misfits:
            findings.error(
                kind_path,
                f'cannot apply {config.kind} to a device of type "{_CLASS_KINDS[request.device_class][1]}" '
                f"(request: {request.name}, class: {request.device_class})",
            )
    elif covered and len(misfits) == len(covered):
        findings.note(kind_path, f"{config.kind} fits none of the requests, so it changes nothing")


def _check_admin_access(path: Path, covered: Sequence[Request], findings: Findings) -> None:
    for request in covered:
        if request.admin_access:
            findings.error(
                path,
                f'request "{request.name}" has adminAccess, which must not change the GPU of others: '
                "take one of the two out",
            )
