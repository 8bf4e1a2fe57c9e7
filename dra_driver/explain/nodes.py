"""Nodes that have devices, and what of a node keeps a pod away before its devices are looked at."""

from dra_driver.explain.state import Json, State
from dra_driver.scheduling import node_terms


def names_and_labels(state: State) -> list[tuple[str, dict[str, str]]]:
    """The nodes to look at: those that slices name, and where slices reach several nodes, all that are known."""
    named = [each["spec"]["nodeName"] for each in state.slices if each["spec"].get("nodeName")]
    wide = any(not each["spec"].get("nodeName") for each in state.slices)
    known = {each["metadata"]["name"]: each["metadata"].get("labels") or {} for each in state.all("Node")}
    names = dict.fromkeys([*named, *(known if wide else ())])
    return [(name, known.get(name, {})) for name in names]


def obstacle(state: State, pod: Json | None, name: str) -> str:
    """Why the pod cannot go to a node, whatever devices it has; '' where it can, or where that is not known."""
    node = state.find("Node", name)
    if pod is None or node is None:
        return ""
    spec, labels = pod.get("spec") or {}, node["metadata"].get("labels") or {}
    if spec.get("nodeName") not in (None, "", name):
        return f"the pod runs on node {spec['nodeName']}"
    if (node.get("spec") or {}).get("unschedulable"):
        return "the node is cordoned: kubectl uncordon"
    taints = node_terms.untolerated((node.get("spec") or {}).get("taints") or (), spec.get("tolerations") or ())
    if taints:
        return f"the pod does not tolerate the node's taint {node_terms.written(taints[0])}"
    for key, value in (spec.get("nodeSelector") or {}).items():
        if labels.get(key) != value:
            return f"the pod's nodeSelector wants {key}={value}, the node has {labels.get(key, 'no such label')}"
    affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    if affinity and not node_terms.matches(affinity, name, labels):
        return "the pod's required nodeAffinity does not take the node"
    return ""
