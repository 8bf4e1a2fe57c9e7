"""From groups of nodes to values of the chart and DeviceClasses. Pure."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

from dra_driver.migrate.legacy import (
    GPU,
    MAX_CLIENTS,
    MIG_PREFIX,
    SHARED_SUFFIX,
    Group,
    Legacy,
    MpsAs,
    Outcome,
    Share,
    Strategy,
    Workload,
    profile_of,
)
from dra_driver.migrate.mps import MpsNodes, nodes_with_mps, say_of_nodes
from dra_driver_api.names import RESOURCE_API_VERSION

Json = dict[str, Any]

SHARES_SINCE: Final = 36
"""Minor version of Kubernetes in which shares and resources of DeviceClasses are on."""

SHARE_CLASS: Final = "gpu-share.nvidia.com"
"""Where only some configs rename: the class that stands for the name of shares."""

_LABEL_LENGTH: Final = 55
"""With room for a number: labels have 63 characters at most."""

GROUP_LABEL: Final = "gpu-sharing"
"""Label that tells groups of nodes apart that nothing told apart before."""

_OWN: Final = "device.driver == 'gpu.nvidia.com'"
_TYPE: Final = "device.attributes['gpu.nvidia.com'].type"


@dataclass(slots=True)
class Fleet:
    """What is written: values of the chart, DeviceClasses beside its own, labels that nodes need, by group.

    served: resources that DeviceClasses stand for; shared: those of them that may be shares. renamed: shares have names
    of their own everywhere. partly: some nodes share, others do not. mps: nodes whose pods get claims with strategy
    MPS; only_mps: there are no others.
    """

    values: Json
    classes: list[Json] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    served: frozenset[str] = frozenset()
    shared: frozenset[str] = frozenset()
    renamed: bool = False
    partly: bool = False
    mps: tuple[MpsNodes, ...] = ()
    only_mps: bool = False

    def may_have_mps(self, workload: Workload) -> bool:
        """Whether some nodes served by MPS what it asks for."""
        return any(nodes.name in workload.asked for nodes in self.mps)

    def through_mps(self, workload: Workload) -> MpsNodes | None:
        """Where its pods had GPUs through MPS for sure."""
        found = [nodes for nodes in self.mps if nodes.name in workload.asked]
        meant = [nodes for nodes in found if nodes.are_meant_by(workload)] or (found if self.only_mps else [])
        return max(meant, key=lambda nodes: nodes.replicas, default=None)


def fleet(legacy: Legacy, minor: int, *, mps_as: MpsAs | None) -> Fleet:
    """Decide for all groups. Findings go to ``legacy``."""
    made = Fleet({"gpuResourcesEnabledOverride": True})
    _decide(legacy, minor, mps_as, made)
    if made.mps:
        made.values.setdefault("featureGates", {})["MPSSupport"] = True
    return made


def _decide(legacy: Legacy, minor: int, mps_as: MpsAs | None, made: Fleet) -> None:
    told_apart = _told_apart(legacy, made)
    groups = [_served(group, legacy, minor, mps_as) for group in told_apart]
    if mps_as is MpsAs.CLAIMS:
        with_mps = [tuple(nodes_with_mps(group)) for group in told_apart]
        made.mps = tuple(nodes for found in with_mps for nodes in found)
        made.only_mps = all(with_mps)
    shares = [share for group in groups for share in group.shares]
    made.renamed = bool(shares) and all(share.rename for share in shares)
    made.partly = bool(shares) and any(not group.shares and not group.partitions for group in groups)
    profiles = sorted(
        {p for group in groups if group.mig_strategy == "mixed" for p in _profiles(group)}
        | {p for workload in legacy.workloads for name in workload.asked if (p := profile_of(name))}
    )
    made.shared = frozenset(_names_of_shares(shares, made.renamed))
    made.served = (
        made.shared
        | {nodes.name for nodes in made.mps}
        | {GPU}
        | {MIG_PREFIX + profile.replace("+", ".") for profile in profiles}
    )
    if minor < SHARES_SINCE:
        made.values["featureGates"] = {"TimeSlicingSettings": True}
        made.values["deviceClasses"] = {"migProfiles": profiles} if profiles else {}
        return
    classes: Json = {"migProfiles": profiles} if profiles else {}
    if made.renamed:
        classes["renameByDefault"] = True
    elif any(share.rename for share in shares):
        made.classes.append(_class(SHARE_CLASS, f"{_OWN} && device.allowMultipleAllocations", GPU + SHARED_SUFFIX))
        said = (
            f"some configs rename and some do not: {GPU} is either, {GPU}{SHARED_SUFFIX} a share (deviceclasses.yaml)"
        )
        legacy.say(Outcome.MAPPED, "all configs", "renameByDefault", said)
    _single(groups, legacy, classes, made)
    made.values["deviceClasses"] = classes
    if shares:
        made.values["featureGates"] = {"ConsumableShares": True}
        made.values["sharingProfile"] = {"rules": list(_rules(groups, legacy, made.values))}


def _told_apart(legacy: Legacy, made: Fleet) -> list[Group]:
    """One group for nodes that nothing selects; where several shared in different ways, each gets a label of ours."""
    selected = [group for group in legacy.groups if group.labels]
    others = [group for group in legacy.groups if not group.labels]
    if len({(group.shares, group.mig_strategy) for group in others}) <= 1:
        return [*others[:1], *selected]
    found = []
    for group in others:
        value = _label_value(group.name, {label.partition("=")[2] for label in made.labels.values()})
        made.labels[group.name] = f"{GROUP_LABEL}={value}"
        said = f"several settings are for all nodes and differ: give these nodes the label {GROUP_LABEL}={value}"
        legacy.say(Outcome.DECIDE, group.where, group.name, said)
        found.append(replace(group, labels={GROUP_LABEL: value}))
    return [*found, *selected]


def _label_value(name: str, taken: set[str]) -> str:
    """Of the file's name, as labels allow it, and another one than those that are taken."""
    value = re.sub(r"[^a-z0-9]+", "-", name.lower().rsplit("/", 1)[-1]).strip("-")[:_LABEL_LENGTH] or "group"
    return value if value not in taken else f"{value}-{len(taken)}"


def _names_of_shares(shares: list[Share], renamed: bool) -> Iterator[str]:
    for share in shares:
        if not renamed:
            yield share.resource
        if share.rename and (renamed or share.resource == GPU):
            yield share.resource + SHARED_SUFFIX


def _served(group: Group, legacy: Legacy, minor: int, mps_as: MpsAs | None) -> Group:
    """The group with the shares that can be given here."""
    found = (_share(share, group, legacy, minor, mps_as) for share in group.shares)
    return replace(group, shares=tuple(filter(None, found)))


def _share(share: Share, group: Group, legacy: Legacy, minor: int, mps_as: MpsAs | None) -> Share | None:
    what = f"{share.strategy.value}: {share.replicas} x {share.resource}"
    if share.strategy is Strategy.MPS and mps_as is not MpsAs.TIME_SLICING:
        say_of_nodes(share, group, legacy, what, mps_as)
        return None
    partitions = _partitions(share, group)
    total = partitions * share.replicas
    replicas = share.replicas
    if minor < SHARES_SINCE:
        said = "each workload that asks for it gets one named claim, and its pods share that claim's device"
        legacy.say(Outcome.MAPPED, group.where, what, said)
    elif total > MAX_CLIENTS:
        replicas = max(1, MAX_CLIENTS // partitions)
        sum_ = f"{partitions} MIG devices x {share.replicas} = {total}" if partitions > 1 else str(total)
        said = (
            f"{sum_} clients on a card, at most {MAX_CLIENTS} are served: {replicas} shares; or raise maxClientsPerGpu"
        )
        legacy.say(Outcome.DECIDE, group.where, what, said)
    elif not _is_meant_twice(share, group):
        legacy.say(Outcome.MAPPED, group.where, what, f"{replicas} shares")
    if share.strategy is Strategy.MPS:
        memory = (
            "memory limits are shareMemory: even (docs/sharing.md)" if minor >= SHARES_SINCE else "so are memory limits"
        )
        said = f"clients take turns; limits on threads are gone, {memory}"
        legacy.say(Outcome.LOST, group.where, "sharing.mps", said)
    return replace(share, replicas=replicas)


def _is_meant_twice(share: Share, group: Group) -> bool:
    """Whether a rule for these full GPUs would mean the group's MIG devices too, which have rules of their own."""
    return bool(group.labels) and share.mig_profile is None and any(each.mig_profile for each in group.shares)


def _rules(groups: list[Group], legacy: Legacy, values: Json) -> Iterator[Json]:
    for group in groups:
        plain = [share for share in group.shares if share.mig_profile is None]
        profiles = [share for share in group.shares if share.mig_profile is not None]
        for share in profiles:
            match: Json = {"migProfile": share.mig_profile}
            yield _rule({**match, **_labels(group)}, share)
        if not group.labels:
            values["consumableShares"] = plain[0].replicas if plain else "disabled"
            if plain and plain[0].only_one:
                said = "only rules have maxPerClaim: a claim may ask for more than one share of a GPU"
                legacy.say(Outcome.LOST, group.where, "failRequestsGreaterThanOne: true", said)
        elif plain and _is_meant_twice(plain[0], group):
            said = (
                "no rule is written, so the full GPUs of these nodes are not shared: a rule for the nodes would mean "
                "their MIG devices too. Write one for the full GPUs by minor, or none where all GPUs are in MIG mode"
            )
            what = f"{plain[0].replicas} x {GPU} beside MIG profiles"
            legacy.say(Outcome.DECIDE, group.where, what, said)
        elif plain:
            yield _rule(_labels(group), plain[0])
        elif not profiles and not group.partitions:
            yield {"match": _labels(group), "shares": "disabled"}


def _rule(match: Json, share: Share) -> Json:
    return {"match": match, "shares": share.replicas, **({"maxPerClaim": 1} if share.only_one else {})}


def _labels(group: Group) -> Json:
    return {"nodeLabels": dict(group.labels)} if group.labels else {}


def _single(groups: list[Group], legacy: Legacy, classes: Json, made: Fleet) -> None:
    """With migStrategy single, ``nvidia.com/gpu`` was a MIG device; a resource name belongs to one DeviceClass."""
    single = [group for group in groups if group.mig_strategy == "single"]
    if not single:
        return
    classes["extendedResourceName"] = ""
    if len(single) == len([group for group in groups if group.shares or group.mig_strategy != "none"]):
        expression, said = f"{_OWN} && {_TYPE} == 'mig'", f"{GPU} is a MIG device, by a class in deviceclasses.yaml"
        legacy.say(Outcome.MAPPED, single[0].where, "migStrategy: single", said)
    else:
        expression = f"{_OWN} && {_TYPE} in ['gpu', 'mig']"
        said = f"a name belongs to one class, and other nodes have full GPUs: {GPU} is either now (deviceclasses.yaml)"
        legacy.say(Outcome.DECIDE, single[0].where, "migStrategy: single", said)
    made.classes.append(_class("any-gpu.nvidia.com", expression, GPU))


def _class(name: str, expression: str, resource: str) -> Json:
    return {
        "apiVersion": RESOURCE_API_VERSION,
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"extendedResourceName": resource, "selectors": [{"cel": {"expression": expression}}]},
    }


def _profiles(group: Group) -> set[str]:
    return {share.mig_profile for share in group.shares if share.mig_profile} | set(group.partitions)


def _partitions(share: Share, group: Group) -> int:
    """MIG devices of a card that have so many clients each; 1 where the resource is full GPUs, or it is not known."""
    if share.mig_profile is not None:
        return group.partitions.get(share.mig_profile, 1)
    return max(group.partitions.values(), default=1) if group.mig_strategy == "single" else 1
