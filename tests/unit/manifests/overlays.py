"""Every set of values for the chart that the project ships, and one that switches on whatever can be switched on."""

from collections.abc import Iterable
from typing import Any, Final

import yaml

from tests.unit.manifests import groups

Json = dict[str, Any]

VERSIONS: Final = ("1.34.4", "1.35.0", "1.36.3", "1.37.2")
"""A version of each Kubernetes that the chart is for."""

EVERYTHING: Final[Json] = {
    "featureGates": {"ConsumableShares": True, "TimeSlicingSettings": True},
    "consumableShares": 10,
    "sharingProfile": {"rules": [{"match": {"minor": 0}, "shares": "disabled"}]},
    "deviceClasses": {"migProfiles": ["1g.18gb"], "renameByDefault": True, "sharing": {"strategy": "TimeSlicing"}},
    "imagePullSecrets": [{"name": "registry"}],
    "kubeletPlugin": {"metrics": {"service": {"enabled": True}}, "networkPolicy": {"enabled": True}},
    "webhook": {
        "enabled": True,
        "replicas": 2,
        "networkPolicy": {"enabled": True},
        "tls": {"mode": "secret", "secret": {"name": "webhook-tls", "caBundle": "LS0tLS0K"}},
    },
}
"""All but what needs the CRDs of others: PodMonitor, Issuer, Certificate."""

FILES: Final = (
    *sorted((groups.MANIFESTS / "platforms").glob("*.yaml")),
    groups.EKS_VALUES,
    groups.MANIFESTS / "examples/values-shares.yaml",
)
VALUES: Final[dict[str, Json]] = {
    "defaults": {},
    **{f"{path.parent.name}/{path.stem}": yaml.safe_load(path.read_text(encoding="utf-8")) for path in FILES},
    "everything": EVERYTHING,
}
"""By a name for test ids."""

KUSTOMIZE: Final = tuple(sorted(path.parent.name for path in groups.MANIFESTS.glob("kustomize/*/kustomization.yaml")))


def kinds(objects: Iterable[Json]) -> set[str]:
    """Which kinds of objects there are."""
    return {each["kind"] for each in objects}
