"""Other places where sharing was said: Bottlerocket, the GPU Operator, mig-parted, GKE, a portal's export."""

import re
from dataclasses import replace
from typing import Any, Final

from dra_driver.migrate.legacy import CONFIG_LABEL, GPU, MAX_CLIENTS, Group, Legacy, Outcome, Share, Strategy, mapping

Json = dict[str, Any]

_SLICES: Final = re.compile(r"(\d+)g\.")
_GPU_SLICES: Final = 7
_LEAST_CLIENTS: Final = 2
_ACCELERATOR: Final = re.compile(r"--accelerator[= ]([^\s\\]+)")


def bottlerocket(content: Json, where: str, legacy: Legacy) -> None:
    """User data of Bottlerocket. Its defaults are not the device plugin's: rename and one a request are on."""
    settings = mapping(content.get("settings"))
    plugin = mapping(mapping(settings.get("kubelet-device-plugins")).get("nvidia"))
    dra = mapping(mapping(settings.get("kubelet-dra-drivers")).get("nvidia"))
    at = "settings.kubelet-device-plugins.nvidia"
    if dra.get("enabled"):
        said = "set it to false: its own driver and this one would publish the same GPUs"
        legacy.say(Outcome.DECIDE, where, "settings.kubelet-dra-drivers.nvidia.enabled: true", said)
    if plugin.get("enabled", True):
        said = "set it to false in the user data of nodes that are moved (Bottlerocket 1.63.0 and later know it)"
        legacy.say(Outcome.DECIDE, where, f"{at}.enabled: true", said)
    strategies = {"none": None, "time-slicing": Strategy.TIME_SLICING, "mps": Strategy.MPS}
    chosen = str(plugin.get("device-sharing-strategy") or "none")
    if chosen not in strategies:
        legacy.say(Outcome.WRONG, where, f"{at}.device-sharing-strategy: {chosen}", f"must be {', '.join(strategies)}")
        chosen = "none"
    shares: tuple[Share, ...] = ()
    strategy = strategies[chosen]
    if strategy is not None:
        block = mapping(plugin.get(chosen))
        only_one = block.get("fail-requests-greater-than-one", True)
        shares = (
            Share(
                resource=GPU,
                replicas=_number(block.get("replicas", 2), f"{at}.{chosen}.replicas", where, legacy),
                strategy=strategy,
                rename=bool(block.get("rename-by-default", True)),
                only_one=bool(only_one),
            ),
        )
    profiles = mapping(mapping(plugin.get("mig")).get("profile"))
    single = plugin.get("device-partitioning-strategy") == "mig"
    for model, profile in profiles.items():
        legacy.say(
            Outcome.MAPPED,
            where,
            f"{at}.mig.profile: {model} = {profile}",
            "stays: this driver takes MIG as the node has it",
        )
    partitions = {str(profile): _partitions(str(profile)) for profile in profiles.values()}
    legacy.groups.append(
        Group(
            name=where,
            where=where,
            mig_strategy="single" if single else "none",
            shares=shares,
            partitions=partitions,
            default=True,
        )
    )
    for key in ("device-list-strategy", "device-id-strategy", "pass-device-specs"):
        if key in plugin:
            legacy.say(Outcome.LOST, where, f"{at}.{key}: {plugin[key]}", "containers get GPUs by CDI")


def cluster_policy(content: Json, where: str, legacy: Legacy) -> None:
    """The GPU Operator's ClusterPolicy: which config is the default, and which MIG strategy counts."""
    spec = mapping(content.get("spec"))
    plugin = mapping(spec.get("devicePlugin"))
    config = mapping(plugin.get("config"))
    if default := config.get("default"):
        legacy.default_config = str(default)
        legacy.say(Outcome.MAPPED, where, f"spec.devicePlugin.config.default: {default}", "its sharing is the default")
    elif config.get("name"):
        said = f"only nodes with the label {CONFIG_LABEL} are shared"
        legacy.say(Outcome.MAPPED, where, f"spec.devicePlugin.config.name: {config['name']} without a default", said)
    if plugin.get("enabled", True):
        said = "off node by node: label nvidia.com/gpu.deploy.device-plugin=false (in plan.md)"
        legacy.say(Outcome.MAPPED, where, "spec.devicePlugin.enabled: true", said)
    if strategy := mapping(spec.get("mig")).get("strategy"):
        legacy.say(Outcome.MAPPED, where, f"spec.mig.strategy: {strategy}", "MIG devices are published as they are")
    if mapping(spec.get("cdi")).get("enabled") is False:
        legacy.say(Outcome.DECIDE, where, "spec.cdi.enabled: false", "containers get GPUs by CDI here: set it to true")


def mig_parted(content: Json, where: str, legacy: Legacy) -> None:
    """Layouts of mig-parted: they stay with it; how many clients a card has is checked against them."""
    for name, entries in mapping(content.get("mig-configs")).items():
        for entry in entries if isinstance(entries, list) else ():
            devices = mapping(mapping(entry).get("mig-devices"))
            if devices:
                layout = ", ".join(f"{count} x {profile}" for profile, count in devices.items())
                said = "stays with mig-manager; the driver publishes what it makes, and notices changes"
                legacy.say(Outcome.MAPPED, where, f"mig-configs.{name}: {layout}", said)
                at = f"mig-configs.{name}"
                partitions = {str(p): _number(count, f"{at}: {p}", where, legacy) for p, count in devices.items()}
                legacy.groups.append(
                    Group(name=name, where=where, labels={"nvidia.com/mig.config": name}, partitions=partitions)
                )


def gke_flags(text: str, where: str, legacy: Legacy) -> None:
    """``--accelerator`` flags of node pools in a script."""
    for found in _ACCELERATOR.finditer(text):
        flags = dict(part.partition("=")[::2] for part in found[1].strip("'\"").split(","))
        what = f"--accelerator {found[1]}"
        clients, partition = flags.get("max-shared-clients-per-gpu"), flags.get("gpu-partition-size")
        _gke(flags.get("gpu-sharing-strategy", ""), clients, partition, what, where, legacy)


def gke_node_pool(content: Json, where: str, legacy: Legacy) -> None:
    """``gcloud container node-pools describe``: accelerators with their ``gpuSharingConfig``."""
    listed = mapping(content.get("config")).get("accelerators")
    for accelerator in map(mapping, listed if isinstance(listed, list) else ()):
        sharing = mapping(accelerator.get("gpuSharingConfig"))
        clients = sharing.get("maxSharedClientsPerGpu") or accelerator.get("maxTimeSharedClientsPerGpu")
        strategy = sharing.get("gpuSharingStrategy") or ("TIME_SHARING" if clients else "")
        _gke(strategy, clients, accelerator.get("gpuPartitionSize"), f"node pool {content.get('name')}", where, legacy)


def portal(content: Json, where: str, legacy: Legacy) -> None:
    """A worker group as a portal exports it: ``gpusPerNode``, ``mig.profile``, ``timeSlicing.maxSharedClients``."""
    mig, slicing = mapping(content.get("mig")), mapping(content.get("timeSlicing"))
    profile, clients = mig.get("profile"), slicing.get("maxSharedClients")
    strategy = str(mig.get("strategy") or ("single" if profile else "none"))
    resource = f"nvidia.com/mig-{profile}" if profile and strategy == "mixed" else GPU
    group = str(content.get("workerGroup") or where)
    partitions = {str(profile): _partitions(str(profile))} if profile else {}
    made = Group(name=group, where=where, mig_strategy=strategy, partitions=partitions, default=True)
    _add(legacy, made, resource, clients, Strategy.TIME_SLICING)


def _gke(strategy: str, clients: Any, partition: Any, what: str, where: str, legacy: Legacy) -> None:
    known = {"time-sharing": Strategy.TIME_SLICING, "mps": Strategy.MPS, "": None}
    found = known.get(str(strategy).lower().replace("_", "-"))
    if found is None and strategy:
        legacy.say(Outcome.WRONG, where, what, f"sharing strategy {strategy!r} is unknown: time-sharing or mps")
    partitions = {str(partition): _partitions(str(partition))} if partition else {}
    said = "GKE's device plugin must be off on nodes that are moved: gke-no-default-nvidia-gpu-device-plugin=true"
    legacy.say(Outcome.DECIDE, where, what, said)
    mig_strategy = "single" if partition else "none"
    group = Group(name=what, where=where, mig_strategy=mig_strategy, partitions=partitions, default=True)
    _add(legacy, group, GPU, clients, found)


def _add(legacy: Legacy, group: Group, resource: str, clients: Any, strategy: Strategy | None) -> None:
    """Add a group with so many clients of a resource; with None the resource is not shared."""
    if clients is not None and strategy is not None:
        number = int(clients) if str(clients).isdecimal() and not isinstance(clients, bool) else 0
        if not _LEAST_CLIENTS <= number <= MAX_CLIENTS:
            said = f"must be a number from {_LEAST_CLIENTS} to {MAX_CLIENTS}"
            legacy.say(Outcome.WRONG, group.where, f"{group.name}: {clients} clients", said)
        else:
            share = Share(resource=resource, replicas=number, strategy=strategy, rename=False, only_one=True)
            group = replace(group, shares=(share,))
    legacy.groups.append(group)


def _partitions(profile: str) -> int:
    """Devices of one profile that a card has room for, by its compute slices."""
    found = _SLICES.match(profile)
    return _GPU_SLICES // int(found[1]) if found else 1


def _number(value: Any, what: str, where: str, legacy: Legacy) -> int:
    """A number from 1; what is none is told and counts as 1."""
    if str(value).isdecimal() and not isinstance(value, bool) and int(value):
        return int(value)
    legacy.say(Outcome.WRONG, where, f"{what}: {value}", "must be a number from 1")
    return 1
