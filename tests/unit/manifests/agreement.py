"""What the chart wants of a node, and whether nodes are so. The judge is the code that explains waiting pods."""

from typing import Any

import yaml

from dra_driver.scheduling.node_terms import matches, untolerated
from tests.unit.manifests import groups

Json = dict[str, Any]
AUTO = {"eks.amazonaws.com/compute-type": "auto"}
OFF = {"kubelet-device-plugins": {"nvidia": {"enabled": False}}, "kubelet-dra-drivers": {"nvidia": {"enabled": False}}}
_SINCE = {"kubelet-device-plugins": (1, 63, 0), "kubelet-dra-drivers": (1, 66, 0)}
"""The first Bottlerocket that knows ``nvidia.enabled`` there; an older one refuses it."""


def placement(*, eks: bool) -> Json:
    """``kubeletPlugin`` as the chart has it, or with the values for EKS on top."""
    found: Json = yaml.safe_load(groups.CHART_VALUES.read_text(encoding="utf-8"))["kubeletPlugin"]
    if eks:
        found |= yaml.safe_load(groups.EKS_VALUES.read_text(encoding="utf-8"))["kubeletPlugin"]
    return found


def runs_on(plugin: Json, labels: Json, taints: tuple[Json, ...] = ()) -> bool:
    """Whether the driver's pods go to a node with these labels and taints."""
    required = plugin["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    selected = plugin["nodeSelector"].items() <= labels.items()
    return selected and matches(required, "node-a", labels) and not untolerated(taints, plugin["tolerations"])


def check(group: groups.Group) -> None:
    """All that has to hold for a group of nodes, whatever tool makes them."""
    for eks in (False, True):
        assert runs_on(placement(eks=eks), group.labels, group.taints), f"{group.name}: no driver, eks={eks}"
    assert not runs_on(placement(eks=True), group.labels | AUTO, group.taints)
    # Workloads that do not ask for a GPU stay away.
    assert untolerated(group.taints, [])
    if group.bottlerocket is None:
        assert group.settings == {}
        return
    assert group.settings == OFF
    version = tuple(int(part) for part in group.bottlerocket.split("."))
    assert version >= max(_SINCE[name] for name in group.settings), f"{group.name}: {group.bottlerocket}"
