"""What the webhook thinks of a claim or a template. Pure.

Only configs of this driver are looked at. The form of Kubernetes' own objects is for the API server to judge, which
knows fields of versions to come.
"""

from collections.abc import Iterator
from typing import Any, Final

from dra_driver.features import Gates
from dra_driver.validation.configs import check_configs
from dra_driver.validation.findings import Findings, Path, Severity
from dra_driver.validation.objects import config_entries
from dra_driver.validation.requests import read_requests
from dra_driver.webhook.reviews import Review, Verdict
from dra_driver_api.names import DRIVER_NAME, RESOURCE_API_GROUP

_VERSIONS: Final = ("v1", "v1beta1", "v1beta2")
_TEMPLATES: Final = "resourceclaimtemplates"
_SPECS: Final[dict[str, Path]] = {"resourceclaims": ("spec",), _TEMPLATES: ("spec", "spec")}
"""Resource -> where the spec of a claim is in it."""

_CHECKED: Final = ("CREATE", "UPDATE")
_MAX_REASONS: Final = 8
_MAX_REASON: Final = 700
_MAX_WARNINGS: Final = 8


def judge(review: Review, gates: Gates) -> Verdict:
    """Refuse what a prepare would refuse for its config. gates: those of the driver that will serve the claim."""
    if review.operation not in _CHECKED:
        return Verdict()
    where = _SPECS.get(review.resource)
    if where is None or review.group != RESOURCE_API_GROUP or review.version not in _VERSIONS:
        return Verdict(
            f"want {' or '.join(_SPECS)} of {RESOURCE_API_GROUP} {', '.join(_VERSIONS)}, "
            f"found {review.resource} of {review.group} {review.version}"[:400],
            "BadRequest",
        )
    if review.object is None:
        return Verdict(f"{review.operation} without an object", "BadRequest")
    spec = _at(review.object, where)
    if review.operation == "UPDATE" and review.old_object and spec == _at(review.old_object, where):
        # Specs do not change. A claim that was there before the webhook, or before a gate was taken away, must still
        # be labelled, and lose its finalizers.
        return Verdict()
    return _judge_devices(_at(spec, ("devices",)), (*where, "devices"), review, gates)


def _judge_devices(devices: Any, path: Path, review: Review, gates: Gates) -> Verdict:
    if not isinstance(devices, dict):
        return Verdict()
    findings = Findings()
    requests = read_requests((*path, "requests"), devices.get("requests"), review.version, Findings())
    entries = _ours(config_entries(devices, path, findings))
    check_configs(entries, requests, findings, gates, from_template=review.resource == _TEMPLATES)
    reasons, notes = findings.of(Severity.ERROR), findings.of(Severity.NOTE)
    if reasons:
        texts = [f"{each.path}: {each.message}"[:_MAX_REASON] for each in reasons[:_MAX_REASONS]]
        more = f"; and {len(reasons) - _MAX_REASONS} more" if len(reasons) > _MAX_REASONS else ""
        failed = len({each.path.partition("]")[0] for each in reasons if "]" in each.path}) or 1
        return Verdict(f"{failed} configs failed to validate: {'; '.join(texts)}{more}")
    return Verdict(warnings=tuple(f"{each.path}: {each.message}" for each in notes[:_MAX_WARNINGS]))


def _ours(entries: Iterator[tuple[Path, Any]]) -> Iterator[tuple[Path, Any]]:
    return ((at, entry) for at, entry in entries if _at(entry, ("opaque", "driver")) == DRIVER_NAME)


def _at(found: Any, path: Path) -> Any:
    """What is at a path, None where the path ends early."""
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    return found
