"""One opaque config: whether it is for this driver, decodes, fits its requests, and can be served."""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dra_driver.claims.configs import GATES, Config, covers, not_served
from dra_driver.features import CONSUMABLE_SHARES, Gates
from dra_driver.model.texts import listed
from dra_driver.validation.findings import Findings, Path
from dra_driver.validation.requests import MAX_ENTRIES, Request, nearest
from dra_driver_api.config import ConfigError, GpuConfig, MigDeviceConfig, MigTimeSlicing, Mps, decode
from dra_driver_api.names import DRIVER_NAME

_CLASS_KINDS = {
    "gpu.nvidia.com": (GpuConfig, "gpu"),
    "mig.nvidia.com": (MigDeviceConfig, "mig"),
    "vfio.gpu.nvidia.com": (None, "vfio"),
}
"""DeviceClasses of the driver -> the config that fits their devices, and the devices' type."""
_MISSPELT = 0.8


@dataclass(frozen=True, slots=True)
class _Applied:
    """A config that a claim asks for. requests: those that it names, () for all."""

    path: Path
    config: Config
    requests: tuple[str, ...]

    def overrides(self, earlier: "_Applied") -> bool:
        """Whether it is for all that an earlier one is for: the later wins, and fields are not merged."""
        if type(self.config) is not type(earlier.config):
            return False
        return not self.requests or (
            bool(earlier.requests) and all(covers(self.requests, name) for name in earlier.requests)
        )


def check_configs(
    entries: Iterable[tuple[Path, Any]],
    requests: Sequence[Request] | None,
    findings: Findings,
    gates: Gates | None,
    *,
    from_template: bool = False,
) -> None:
    """Entries of ``config`` with their paths. requests: those of the claim, None in a DeviceClass, which has none."""
    found = [_check_entry(path, entry, requests, findings, gates) for path, entry in entries]
    applied = [each for each in found if each is not None]
    _note_overridden(applied, findings)
    _note_daemons(applied, findings)
    if not from_template or (gates and CONSUMABLE_SHARES in gates):
        return
    for each in applied:
        if each.config.sharing is not None:
            findings.note(
                (*each.path, "opaque", "parameters", "sharing", "strategy"),
                "each Pod gets a claim of its own from a template, and so a GPU of its own; to share one, name one "
                f"ResourceClaim in each Pod's resourceClaimName, or offer shares (gate {CONSUMABLE_SHARES})",
            )


def _note_overridden(applied: Sequence[_Applied], findings: Findings) -> None:
    for index, each in enumerate(applied):
        winner = next((later for later in applied[index + 1 :] if later.overrides(each)), None)
        if winner is not None:
            entry = f"{winner.path[-2]}[{winner.path[-1]}]"
            findings.note(each.path, f"has no effect: {entry} is for the same requests, and the later wins")


def _note_daemons(applied: Sequence[_Applied], findings: Findings) -> None:
    """Each config has an MPS control daemon of its own, and a container has one directory to meet a daemon."""
    counting = (a for n, a in enumerate(applied) if not any(later.overrides(a) for later in applied[n + 1 :]))
    served = [each for each in counting if isinstance(each.config.sharing, Mps)]
    for later in served[1:]:
        first = f"{served[0].path[-2]}[{served[0].path[-1]}]"
        findings.note(
            (*later.path, "opaque", "parameters", "sharing", "strategy"),
            f"has an MPS control daemon of its own beside that of {first}, and a container that uses requests of both "
            "reaches one of them: make it one config, or give each container the requests of one",
        )


def _check_entry(
    path: Path, entry: Any, requests: Sequence[Request] | None, findings: Findings, gates: Gates | None
) -> _Applied | None:
    """One entry; what it comes to for a claim, None when that is nothing or wrong."""
    if not isinstance(entry, dict):
        findings.error(path, "want an object with opaque")
        return None
    opaque = entry.get("opaque")
    if not isinstance(opaque, dict):
        findings.error(path, "only opaque parameters are supported: want an object under opaque")
        return None
    if not _is_ours((*path, "opaque", "driver"), opaque.get("driver"), findings):
        return None
    named = _named_requests(path, entry, requests, findings)
    parameters = opaque.get("parameters")
    at: Path = (*path, "opaque", "parameters")
    if not isinstance(parameters, dict):
        findings.error(at, "want an object with apiVersion and kind")
        return None
    config = check_parameters(at, parameters, findings, gates)
    if config is None or requests is None or named is None:
        return None
    covered = [request for request in requests if not named or covers(named, request.name)]
    _check_fit(path, config, covered, named, findings)
    if config.sharing is not None:
        _check_admin_access((*at, "sharing", "strategy"), covered, findings)
    return _Applied(path, config, tuple(named))


def check_parameters(path: Path, parameters: dict[str, Any], findings: Findings, gates: Gates | None) -> Config | None:
    """Decode strictly, then see whether the driver serves the strategy. None when it does not decode."""
    findings.checked += 1
    try:
        config = decode(parameters)
    except ConfigError as error:
        findings.error((*path, *error.path), str(error))
        return None
    if config.sharing is not None:
        at: Path = (*path, "sharing", "strategy")
        _check_strategy(at, config.sharing.strategy, findings, gates)
        if isinstance(config.sharing, MigTimeSlicing):
            findings.note(at, "a MIG device has no time slice, so TimeSlicing changes nothing on it")
    return config


def _check_strategy(path: Path, strategy: str, findings: Findings, gates: Gates | None) -> None:
    gate = GATES[strategy]
    if gates is None:
        findings.note(path, f"needs the driver's feature gate {gate}=true, which is off by default")
    elif gate not in gates:
        findings.error(path, not_served(strategy))


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
    if len(named) > MAX_ENTRIES:
        findings.error(at, f"{len(named)} entries, at most {MAX_ENTRIES} are allowed")
        return None
    known = sorted({name for request in requests for name in (request.main, request.name)})
    unknown = [(index, name) for index, name in enumerate(named) if name not in known]
    for index, name in unknown:
        # A look for a near name compares with all: once an entry is enough help.
        near = nearest(name, known) if name == unknown[0][1] else None
        hint = f", did you mean {near}?" if near else f", requests: {listed(known, 8) or 'none'}"
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
