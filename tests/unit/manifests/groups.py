"""What the manifests say of the nodes that they make, in one shape, whatever tool they are for."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

Json = dict[str, Any]

MANIFESTS: Final = Path(__file__).parents[3] / "manifests"
CHART_VALUES: Final = MANIFESTS / "helm/dra-driver-gpu/values.yaml"
EKS_VALUES: Final = MANIFESTS / "eks/values.yaml"
CLUSTER: Final = MANIFESTS / "eks/cluster.yaml"
TERRAFORM: Final = MANIFESTS / "eks/node-groups.tf"
POOLS: Final = (MANIFESTS / "karpenter/al2023.yaml", MANIFESTS / "karpenter/bottlerocket.yaml")
FILES: Final = tuple(
    path for folder in ("eks", "karpenter", "bottlerocket") for path in sorted((MANIFESTS / folder).iterdir())
)
USER_DATA: Final = MANIFESTS / "bottlerocket/gpu-dra.toml"


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes that are alike. bottlerocket: the version, None for AL2023; settings: what its user data sets."""

    name: str
    labels: Json
    taints: tuple[Json, ...]
    bottlerocket: str | None
    settings: Json


def documents(path: Path) -> list[Json]:
    """All of a YAML file."""
    return [document for document in yaml.safe_load_all(path.read_text(encoding="utf-8")) if document]


def one(path: Path, kind: str) -> Json:
    """The only object of a kind in a file."""
    (found,) = [document for document in documents(path) if document["kind"] == kind]
    return found


def of_eksctl() -> list[Group]:
    """The managed node groups of the ClusterConfig."""
    return [_of_eksctl(group) for group in one(CLUSTER, "ClusterConfig")["managedNodeGroups"]]


def of_karpenter() -> list[Group]:
    """The pools, each with the class that it names."""
    return [_of_karpenter(one(path, "NodePool"), one(path, "EC2NodeClass")) for path in POOLS]


def of_terraform(parsed: Json) -> list[Group]:
    """The managed node groups of the Terraform file, as hcl2json gives it, in ``locals`` and the module's inputs."""
    (values,), (module,) = parsed["locals"], parsed["module"]["eks"]
    (image,) = parsed["data"]["aws_ssm_parameter"]["bottlerocket"]
    groups = module["eks_managed_node_groups"]
    return [_of_terraform(name, group, values, image["name"]) for name, group in groups.items()]


def _of_eksctl(group: Json) -> Group:
    settings = group.get("bottlerocket", {}).get("settings", {})
    version = group["releaseVersion"].partition("-")[0] if group["amiFamily"] == "Bottlerocket" else None
    return Group(group["name"], group["labels"], tuple(group["taints"]), version, settings)


def _of_karpenter(pool: Json, node_class: Json) -> Group:
    template = pool["spec"]["template"]
    assert template["spec"]["nodeClassRef"]["name"] == node_class["metadata"]["name"]
    (image,) = node_class["spec"]["amiSelectorTerms"]
    family, _, version = image["alias"].partition("@v")
    settings = tomllib.loads(node_class["spec"].get("userData", "")).get("settings", {})
    bottlerocket = version if family == "bottlerocket" else None
    labels, taints = template["metadata"]["labels"], tuple(template["spec"]["taints"])
    return Group(pool["metadata"]["name"], labels, taints, bottlerocket, settings)


def _of_terraform(name: str, group: Json, values: Json, image: str) -> Group:
    spelling = {"NO_SCHEDULE": "NoSchedule"}
    taints = tuple({**taint, "effect": spelling[taint["effect"]]} for taint in _value(group["taints"], values).values())
    if not group["ami_type"].startswith("BOTTLEROCKET"):
        return Group(name, _value(group["labels"], values), taints, None, {})
    # The module takes the newest release, whatever is written, unless it is told otherwise.
    assert group["use_latest_ami_release_version"] is False
    assert group["ami_release_version"] == "${nonsensitive(data.aws_ssm_parameter.bottlerocket.value)}"
    assert "${local.bottlerocket_version}" in image
    file = group["bootstrap_extra_args"].removeprefix('${file("${path.module}/').removesuffix('")}')
    settings = tomllib.loads((TERRAFORM.parent / file).read_text(encoding="utf-8"))["settings"]
    return Group(name, _value(group["labels"], values), taints, values["bottlerocket_version"], settings)


def _value(text: str, values: Json) -> Json:
    found: Json = values[text.removeprefix("${local.").removesuffix("}")]
    return found
