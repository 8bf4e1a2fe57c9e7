"""The report and the plan, as Markdown."""

from collections.abc import Iterator

from dra_driver.migrate.fleet import SHARES_SINCE, Fleet
from dra_driver.migrate.legacy import CONFIG_LABEL, Finding, Json, Legacy, Outcome

_HEADINGS = {
    Outcome.DECIDE: "Needs a decision",
    Outcome.WRONG: "Was wrong before",
    Outcome.LOST: "Lost",
    Outcome.MAPPED: "Mapped",
}

WORKLOADS = "workloads/"
BEFORE = "before/"
"""The same workloads as they were, for the way back."""

_SHARES = '{range .items[*].spec.devices[*]}{.name} {.capacity.shares.value}{"\\n"}{end}'

_OFFERED = "kubectl get node NODE -o jsonpath='{.status.allocatable}'"
_DRAIN = "kubectl drain NODE --ignore-daemonsets --delete-emptydir-data   # --force for pods that nothing makes anew"


def report(legacy: Legacy, files: list[str]) -> str:
    """What became of everything that was read; decisions first."""
    return "\n".join(_report(legacy, files)) + "\n"


def plan(legacy: Legacy, fleet: Fleet, minor: int, files: list[str]) -> str:
    """Node by node: what to do, how to see that it worked, how to go back."""
    return "\n".join(_plan(legacy, fleet, minor, files)) + "\n"


def _report(legacy: Legacy, files: list[str]) -> Iterator[str]:
    counts = ", ".join(f"{o.counted(sum(f.outcome is o for f in legacy.findings))}" for o in _HEADINGS)
    yield "# Migration report"
    yield ""
    yield f"{counts}."
    for outcome, heading in _HEADINGS.items():
        found = [finding for finding in legacy.findings if finding.outcome is outcome]
        if found:
            yield from ("", f"## {heading}", "", "| where | what | now |", "|---|---|---|")
            yield from map(_row, found)
    yield from ("", "## Files", "")
    yield from (f"- `{name}`" for name in files)


def _row(finding: Finding) -> str:
    cells = (finding.where, finding.what, finding.becomes)
    return f"| {' | '.join(cell.replace('|', '/').replace(chr(10), ' ') for cell in cells)} |"


def _plan(legacy: Legacy, fleet: Fleet, minor: int, files: list[str]) -> Iterator[str]:
    yield "# Plan"
    yield ""
    yield f"For Kubernetes 1.{minor}, one node after another: a node has either the device plugin or this driver."
    yield from _once(fleet)
    yield from _each_node(legacy, fleet, minor)
    changed = [name for name in files if name.startswith(WORKLOADS)]
    yield from _workloads(changed)
    yield from _back(changed, [name for name in files if name.startswith(BEFORE)])


def _once(fleet: Fleet) -> Iterator[str]:
    yield from ("", "## Once", "")
    yield "1. Decide what `report.md` leaves open."
    yield "2. Install the driver for nodes with the label `gpu-mode=dra`, of which there is none yet. CHART is"
    yield "   `manifests/helm/dra-driver-gpu` of the driver's repository, REGISTRY where its image is:"
    yield "   ```sh"
    yield "   helm upgrade --install dra-driver-gpu CHART --namespace dra-driver-gpu --create-namespace \\"
    yield "     --set image.repository=REGISTRY/dra-driver-gpu \\"
    yield '     --values values.yaml --set-json \'kubeletPlugin.nodeSelector={"gpu-mode":"dra"}\''
    if fleet.classes:
        yield "   kubectl apply -f deviceclasses.yaml"
    yield f"   kubectl get deviceclasses        # {', '.join(_classes(fleet))}"
    yield "   ```"
    for name, label in fleet.labels.items():
        yield f"3. Label the nodes of `{name}`: `kubectl label node NODE {label}`."


def _each_node(legacy: Legacy, fleet: Fleet, minor: int) -> Iterator[str]:
    yield from ("", "## Each node", "")
    yield from _nodes(legacy)
    yield "```sh"
    yield "kubectl cordon NODE"
    yield _DRAIN
    yield "# The device plugin leaves. GPU Operator: this label. Else: a label that its DaemonSet's affinity excludes;"
    yield "# Bottlerocket: kubelet-device-plugins.nvidia.enabled=false; managed groups and Karpenter: a new pool."
    yield "kubectl label node NODE nvidia.com/gpu.deploy.device-plugin=false"
    yield f"{_OFFERED}   # none of nvidia.com/, or 0 each: go on only then"
    yield "kubectl label node NODE gpu-mode=dra"
    yield "kubectl get resourceslices --field-selector spec.nodeName=NODE              # driver gpu.nvidia.com"
    if fleet.shared and minor >= SHARES_SINCE:
        yield "# Each device with its number of shares; whole devices have none:"
        yield f"kubectl get resourceslices --field-selector spec.nodeName=NODE -o jsonpath='{_SHARES}'"
    yield "kubectl uncordon NODE"
    yield "```"


def _workloads(changed: list[str]) -> Iterator[str]:
    yield from ("", "## Workloads", "")
    if changed:
        yield "Namespace by namespace, once nodes have room:"
        yield "An object that was not made by kubectl apply keeps its old resources beside the claim: delete it first."
        yield "```sh"
        yield from (f"kubectl apply -f {name}" for name in changed)
        yield "```"
    else:
        yield "None has to be changed."
    yield "A pod that waits: `dra-driver explain pod/NAME -n NAMESPACE`."


def _back(changed: list[str], before: list[str]) -> Iterator[str]:
    yield from ("", "## Back", "")
    yield "Pods with claims go first: without the driver nobody lets go of their devices, and they stay Terminating."
    if changed:
        yield "Claims and templates named NAME-gpu can be deleted once their pods are gone."
    yield "```sh"
    yield from (f"kubectl apply -f {name}" for name in before)
    yield "kubectl cordon NODE"
    yield _DRAIN
    yield "kubectl label node NODE gpu-mode- nvidia.com/gpu.deploy.device-plugin-"
    yield f"{_OFFERED}   # as before"
    yield "kubectl uncordon NODE"
    yield "```"


def _classes(fleet: Fleet) -> Iterator[str]:
    profiles = fleet.values["deviceClasses"].get("migProfiles", [])
    for name in ("gpu", "mig", *(f"mig-{profile.replace('+', '.')}" for profile in profiles)):
        yield f"{name}.nvidia.com"
        if fleet.values["deviceClasses"].get("renameByDefault"):
            yield f"{name}.shared.nvidia.com"
    yield from (each["metadata"]["name"] for each in fleet.classes)


def _nodes(legacy: Legacy) -> Iterator[str]:
    gpu_nodes = [node for node in legacy.nodes if _gpus(node)]
    if not gpu_nodes:
        return
    yield from ("| node | GPUs offered now | config |", "|---|---|---|")
    for node in gpu_nodes:
        labels = node["metadata"].get("labels") or {}
        yield f"| {node['metadata']['name']} | {_gpus(node)} | {labels.get(CONFIG_LABEL, 'default')} |"
    yield ""


def _gpus(node: Json) -> str:
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    return ", ".join(f"{name}: {n}" for name, n in allocatable.items() if name.startswith("nvidia.com/") and n != "0")
