"""From groups of nodes to values of the chart and DeviceClasses. Pure."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

from dra_driver.migrate.legacy import GPU, MAX_CLIENTS, SHARED_SUFFIX, Group, Legacy, Outcome, Share, Strategy
from dra_driver_api.names import RESOURCE_API_VERSION

Json = dict[str, Any]

SHARES_SINCE: Final = 36
"""Minor version of Kubernetes in which shares and resources of DeviceClasses are on."""

_LABEL_LENGTH: Final = 55
"""With room for a number: labels have 63 characters at most."""

GROUP_LABEL: Final = "gpu-sharing"
"""Label that tells groups of nodes apart that nothing told apart before."""

_OWN: Final = "device.driver == 'gpu.nvidia.com'"
_TYPE: Final = "device.attributes['gpu.nvidia.com'].type"


@dataclass(slots=True)
class Fleet:
    """What is written: values of the chart, DeviceClasses beside its own, labels that nodes need, by group."""

    values: Json
    classes: list[Json] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    shared: bool = False
    renamed: bool = False


def fleet(legacy: Legacy, minor: int, *, mps_as_time_slicing: bool) -> Fleet:
    """Decide for all groups. Findings go to ``legacy``."""
    made = Fleet({"gpuResourcesEnabledOverride": True})
    groups = [_served(group, legacy, mps_as_time_slicing) for group in _told_apart(legacy, made)]
    shares = [share for group in groups for share in group.shares]
    made.shared = bool(shares)
    made.renamed = bool(shares) and all(share.rename for share in shares)
    profiles = sorted({p for group in groups if group.mig_strategy == "mixed" for p in _profiles(group)})
    if minor < SHARES_SINCE:
        made.values["featureGates"] = {"TimeSlicingSettings": True}
        made.values["deviceClasses"] = {"migProfiles": profiles} if profiles else {}
        return made
    classes: Json = {"migProfiles": profiles} if profiles else {}
    if made.renamed:
        classes["renameByDefault"] = True
    elif any(share.rename for share in shares):
        made.classes.append(
            _class("gpu-share.nvidia.com", f"{_OWN} && device.allowMultipleAllocations", GPU + SHARED_SUFFIX)
        )
        said = (
            f"some configs rename and some do not: {GPU} is either, {GPU}{SHARED_SUFFIX} a share (deviceclasses.yaml)"
        )
        legacy.say(Outcome.MAPPED, "all configs", "renameByDefault", said)
    _single(groups, legacy, classes, made)
    made.values["deviceClasses"] = classes
    if shares:
        made.values["featureGates"] = {"ConsumableShares": True}
        made.values["sharingProfile"] = {"rules": list(_rules(groups, legacy, made.values))}
    return made


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
        said = f"several files share all nodes in different ways: give these nodes the label {GROUP_LABEL}={value}"
        legacy.say(Outcome.DECIDE, group.where, group.name, said)
        found.append(replace(group, labels={GROUP_LABEL: value}))
    return [*found, *selected]


def _label_value(name: str, taken: set[str]) -> str:
    """Of the file's name, as labels allow it, and another one than those that are taken."""
    value = re.sub(r"[^a-z0-9]+", "-", name.lower().rsplit("/", 1)[-1]).strip("-")[:_LABEL_LENGTH] or "group"
    return value if value not in taken else f"{value}-{len(taken)}"


def _served(group: Group, legacy: Legacy, mps_as_time_slicing: bool) -> Group:
    """The group with the shares that can be given here."""
    return replace(
        group, shares=tuple(filter(None, (_share(s, group, legacy, mps_as_time_slicing) for s in group.shares)))
    )


def _share(share: Share, group: Group, legacy: Legacy, mps_as_time_slicing: bool) -> Share | None:
    what = f"{share.strategy.value}: {share.replicas} x {share.resource}"
    if share.strategy is Strategy.MPS and not mps_as_time_slicing:
        said = (
            "MPS is not mapped: keep these nodes on the device plugin, or choose shares that take turns "
            "(--mps-as time-slicing), without MPS's limits on threads and memory"
        )
        legacy.say(Outcome.DECIDE, group.where, what, said)
        return None
    partitions = _partitions(share, group)
    total = partitions * share.replicas
    replicas = share.replicas
    if total > MAX_CLIENTS:
        replicas = max(1, MAX_CLIENTS // partitions)
        sum_ = f"{partitions} MIG devices x {share.replicas} = {total}" if partitions > 1 else str(total)
        said = (
            f"{sum_} clients on a card, at most {MAX_CLIENTS} are served: {replicas} shares; or raise maxClientsPerGpu"
        )
        legacy.say(Outcome.DECIDE, group.where, what, said)
    else:
        legacy.say(Outcome.MAPPED, group.where, what, f"{replicas} shares")
    if share.strategy is Strategy.MPS:
        said = "clients take turns; limits on threads are gone, memory limits are --share-memory=even (docs/sharing.md)"
        legacy.say(Outcome.LOST, group.where, "sharing.mps", said)
    return replace(share, replicas=replicas)


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
        elif plain and profiles:
            said = "a rule for the GPUs of these nodes would mean their MIG devices too: name the full GPUs by minor"
            legacy.say(Outcome.DECIDE, group.where, f"{GPU} beside MIG profiles", said)
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
