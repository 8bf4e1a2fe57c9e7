"""MPS of the device plugin, as claims with strategy MPS: which nodes had it, and what is said of it. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dra_driver.migrate.legacy import SHARED_SUFFIX, Group, Legacy, MpsAs, Outcome, Share, Strategy, Workload, mapping


@dataclass(frozen=True, slots=True)
class MpsNodes:
    """Nodes whose GPUs pods had through MPS, by this name, so many clients a GPU. labels: what selects the nodes."""

    labels: Mapping[str, str]
    name: str
    replicas: int

    def are_meant_by(self, workload: Workload) -> bool:
        """Whether its pods go to no other nodes."""
        selector = mapping(workload.pod_spec.get("nodeSelector"))
        return bool(self.labels) and self.labels.items() <= selector.items()


def nodes_with_mps(group: Group) -> Iterator[MpsNodes]:
    """Those of a group, one for each name. MIG devices are not among them."""
    for share in group.shares:
        if share.strategy is Strategy.MPS and not _is_of_mig(share, group):
            name = share.resource + SHARED_SUFFIX if share.rename else share.resource
            yield MpsNodes(group.labels, name, share.replicas)


def say_of_nodes(share: Share, group: Group, legacy: Legacy, what: str, mps_as: MpsAs | None) -> None:
    """What becomes of it, where it does not become shares that take turns. Findings go to ``legacy``."""
    if mps_as is None:
        said = (
            "MPS is not mapped, since it is for one claim that pods of one namespace share (docs/mps.md): one claim "
            "for each workload (--mps-as claims), keep these nodes on the device plugin, or choose shares that take "
            "turns (--mps-as time-slicing), without MPS's limits on threads and memory"
        )
        legacy.say(Outcome.DECIDE, group.where, what, said)
        return
    if _is_of_mig(share, group):
        said = (
            "MPS on MIG devices is not written: write claims of mig.nvidia.com with strategy MPS in a MigDeviceConfig"
        )
        legacy.say(Outcome.DECIDE, group.where, what, said)
        return
    said = "each workload that asks for it gets one named claim with strategy MPS, and its pods share that GPU"
    legacy.say(Outcome.MAPPED, group.where, what, said)
    limits = f"defaultActiveThreadPercentage: {100 // share.replicas}, defaultPinnedDeviceMemoryLimit: AMOUNT"
    said = (
        f"a client had 1/{share.replicas} of threads and memory at most, and has no limit now: where one is wanted, "
        f"write mpsConfig: {{{limits}}} into the claim"
    )
    legacy.say(Outcome.LOST, group.where, "sharing.mps: limits of a client", said)
    said = (
        "workloads shared a GPU with each other, and each has one of its own now: where GPUs are too few for that, "
        "let workloads of a namespace name one claim"
    )
    legacy.say(Outcome.LOST, group.where, "sharing.mps: one GPU for several workloads", said)


def say_of_workload(each: Workload, nodes: MpsNodes | None, maybe: bool, legacy: Legacy, what: str) -> None:
    """What one named claim means for it. nodes: where its pods ran; maybe: whether they may have run on such nodes."""
    if nodes is None:
        if maybe:
            said = (
                "only some nodes had MPS, and nothing says that its pods ran there: no claim with MPS is written for "
                "it. Where they did, give it the nodeSelector of these nodes, and start again"
            )
            legacy.say(Outcome.DECIDE, each.where, what, said)
        return
    pods = mapping(each.content.get("spec")).get("replicas")
    if isinstance(pods, int) and pods > nodes.replicas:
        said = f"its {pods} pods share one GPU now, which had {nodes.replicas} clients at most: make several of it"
        legacy.say(Outcome.DECIDE, each.where, what, said)
    if each.kind == "Pod":
        said = "a Pod alone has a GPU for itself now: let Pods that shared one name the same claim"
        legacy.say(Outcome.DECIDE, each.where, what, said)


def _is_of_mig(share: Share, group: Group) -> bool:
    return group.mig_strategy == "single" or share.mig_profile is not None
