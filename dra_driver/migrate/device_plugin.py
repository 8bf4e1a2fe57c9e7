"""Configs of the NVIDIA device plugin: ``version: v1`` with flags, resources, sharing and imex; what each becomes.

Facts: github.com/NVIDIA/k8s-device-plugin, api/config/v1.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from dra_driver.migrate.legacy import GPU, Group, Legacy, Outcome, Share, Strategy, mapping, profile_of

Json = dict[str, Any]

EMPTY: Final[Json] = {"version": "v1"}
"""A config that leaves everything as it is by default."""

_TOP: Final = ("version", "flags", "resources", "sharing", "imex")
_MIG_STRATEGIES: Final = ("none", "single", "mixed")
_LEAST_REPLICAS: Final = 2
_IGNORED_FLAGS: Final = {
    "failOnInitError": "the driver waits for the GPUs and says so in its readiness",
    "deviceListStrategy": "containers get GPUs by CDI; nothing else is handed over",
    "passDeviceSpecs": "containers get GPUs by CDI",
    "deviceIDStrategy": "containers get GPUs by CDI; NVIDIA_VISIBLE_DEVICES is void",
    "sharedDevicesAllocationPolicy": "the scheduler fills one GPU's shares before the next",
    "nvidiaDriverRoot": "chart value nvidiaDriverRoot",
    "useNodeFeatureAPI": "labels stay with GPU Feature Discovery, which may stay",
}


def is_config(content: Any) -> bool:
    """Whether this is such a config."""
    return (
        isinstance(content, dict)
        and "kind" not in content
        and bool(content.keys() & {"sharing", "flags", "resources"})
        and "mig-configs" not in content
    )


def read(content: Json, where: str, legacy: Legacy, name: str = "", labels: Mapping[str, str] | None = None) -> None:
    """Add what a config says to the nodes that a label selects, or to all."""
    version = content.get("version") or "v1"
    if version != "v1":
        legacy.say(Outcome.WRONG, where, f"version: {version}", "only v1 exists, the device plugin refuses this config")
        return
    for key in content.keys() - set(_TOP):
        legacy.say(Outcome.WRONG, where, f"{key}:", f"unknown to the device plugin, which has: {', '.join(_TOP)}")
    flags = mapping(content.get("flags"))
    strategy = str(flags.get("migStrategy") or "none")
    if strategy not in _MIG_STRATEGIES:
        legacy.say(Outcome.WRONG, where, f"flags.migStrategy: {strategy}", f"must be {', '.join(_MIG_STRATEGIES)}")
        strategy = "none"
    _say_flags(flags, where, legacy)
    sharing = mapping(content.get("sharing"))
    shares = tuple(_shares(sharing, strategy, where, legacy))
    group = Group(
        name=name or where,
        where=where,
        labels=dict(labels or {}),
        mig_strategy=strategy,
        shares=shares,
        default=not labels,
    )
    legacy.groups.append(group)
    if not shares:
        what = "sharing:" if sharing else "no sharing"
        legacy.say(Outcome.MAPPED, where, what, "whole GPUs" if strategy == "none" else "whole GPUs and MIG devices")


def _say_flags(flags: Json, where: str, legacy: Legacy) -> None:
    named = {**flags, **mapping(flags.get("plugin"))}
    for key, why in _IGNORED_FLAGS.items():
        if key in named:
            outcome = Outcome.MAPPED if why.startswith("chart value") else Outcome.LOST
            legacy.say(outcome, where, f"flags: {key}: {named[key]}", why)
    for key in ("gdrcopyEnabled", "gdsEnabled", "mofedEnabled"):
        if flags.get(key):
            legacy.say(
                Outcome.DECIDE,
                where,
                f"flags.{key}: true",
                "not handed over by this driver: keep such pods on the device plugin",
            )


def _shares(sharing: Json, mig_strategy: str, where: str, legacy: Legacy) -> Iterator[Share]:
    blocks = {Strategy.TIME_SLICING: sharing.get("timeSlicing"), Strategy.MPS: sharing.get("mps")}
    given = {strategy: mapping(block) for strategy, block in blocks.items() if block is not None}
    for key in sharing.keys() - {"timeSlicing", "mps"}:
        legacy.say(Outcome.WRONG, where, f"sharing.{key}:", "unknown to the device plugin: timeSlicing or mps")
    if len(given) > 1:
        # MPS wins where it has replicas, so that time slicing says nothing then.
        winner = Strategy.MPS if any(_entries(given[Strategy.MPS])) else Strategy.TIME_SLICING
        legacy.say(Outcome.LOST, where, "sharing: timeSlicing beside mps", f"only {winner.value} had an effect")
        given = {winner: given[winner]}
    for strategy, block in given.items():
        entries = list(_entries(block))
        at = "sharing.timeSlicing" if strategy is Strategy.TIME_SLICING else "sharing.mps"
        if not entries:
            legacy.say(
                Outcome.WRONG, where, f"{at}.resources", "empty or missing: the device plugin refuses this config"
            )
        if strategy is Strategy.MPS and mig_strategy == "mixed":
            legacy.say(Outcome.WRONG, where, at, "MPS with migStrategy mixed: the device plugin refuses this config")
            continue
        only_one = bool(block.get("failRequestsGreaterThanOne", strategy is Strategy.MPS))
        for index, entry in enumerate(entries):
            share = _share(entry, f"{at}.resources[{index}]", where, legacy, strategy, only_one, block)
            if share is not None:
                yield share


def _share(
    entry: Any, at: str, where: str, legacy: Legacy, strategy: Strategy, only_one: bool, block: Json
) -> Share | None:
    entry = mapping(entry)
    name, replicas = entry.get("name"), entry.get("replicas")
    if not isinstance(name, str) or not name:
        legacy.say(Outcome.WRONG, where, f"{at}.name", "missing: the device plugin refuses this config")
        return None
    if not isinstance(replicas, int) or isinstance(replicas, bool) or replicas < _LEAST_REPLICAS:
        said = f"must be a number from {_LEAST_REPLICAS}: the device plugin refuses this config"
        given = "missing" if replicas is None else replicas
        legacy.say(Outcome.WRONG, where, f"{at}.replicas: {given}", said)
        return None
    for key in ("devices", "rename"):
        if key in entry and entry[key] != "all":
            legacy.say(Outcome.LOST, where, f"{at}.{key}: {entry[key]}", "the device plugin read and dropped it")
    resource = name if "/" in name else f"nvidia.com/{name}"
    if resource != GPU and profile_of(resource) is None:
        legacy.say(Outcome.DECIDE, where, f"{at}.name: {resource}", f"only {GPU} and nvidia.com/mig-PROFILE are known")
        return None
    return Share(
        resource=resource,
        replicas=replicas,
        strategy=strategy,
        rename=bool(block.get("renameByDefault", False)),
        only_one=only_one,
    )


def _entries(block: Json) -> Iterator[Any]:
    listed = block.get("resources")
    yield from listed if isinstance(listed, list) else ()
