"""``dra-driver migrate``: what is read, what is written for it, and that nothing is left out without a word."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.commands.main import main
from dra_driver.settings.profile_file import parse_profile
from dra_driver.simulator.api_server import ApiServer
from dra_driver.simulator.kinds import PODS

Json = dict[str, Any]


@dataclass
class Migrated:
    """What came of it."""

    code: int
    printed: str
    folder: Path

    @property
    def values(self) -> Json:
        return yaml.safe_load((self.folder / "values.yaml").read_text())  # type: ignore[no-any-return]

    @property
    def report(self) -> str:
        return (self.folder / "report.md").read_text()

    @property
    def plan(self) -> str:
        return (self.folder / "plan.md").read_text()

    def all(self, name: str) -> list[Json]:
        return list(yaml.safe_load_all((self.folder / name).read_text()))


Migrate = Callable[..., Migrated]


@pytest.fixture
def migrate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Migrate:
    def run(*contents: Any, flags: tuple[str, ...] = (), name: str = "in.yaml") -> Migrated:
        names = []
        for number, content in enumerate(contents):
            file = tmp_path / f"{number}-{name}"
            file.write_text(content if isinstance(content, str) else yaml.safe_dump(content), encoding="utf-8")
            names.append(str(file))
        code = main(["migrate", *names, "-o", str(tmp_path / "out"), *flags])
        out = capsys.readouterr()
        return Migrated(code, out.out + out.err, tmp_path / "out")

    return run


def sharing(*resources: Json, block: str = "timeSlicing", flags: Json | None = None, **more: Any) -> Json:
    return {"version": "v1", "flags": flags or {}, "sharing": {block: {"resources": list(resources), **more}}}


def gpus(replicas: Any, name: str = "nvidia.com/gpu") -> Json:
    return {"name": name, "replicas": replicas}


def config_map(**configs: Json) -> Json:
    data = {name.replace("_", "-"): yaml.safe_dump(config) for name, config in configs.items()}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "sharing"}, "data": data}


def deployment(resources: Json | None = None, **spec: Any) -> Json:
    limits = {"limits": {"nvidia.com/gpu": 1} if resources is None else resources}
    template = {"spec": {"containers": [{"name": "main", "image": "x", "resources": limits}], **spec}}
    metadata = {"name": "server", "namespace": "team"}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": {"template": template}}


# The device plugin.


def test_replicas_of_all_nodes_are_shares_of_all_gpus_and_workloads_stay_as_they_are(migrate: Migrate) -> None:
    made = migrate(config_map(any=sharing(gpus(4))), deployment())
    assert made.code == 0
    assert (made.values["consumableShares"], made.values["featureGates"]) == (4, {"ConsumableShares": True})
    assert "Deployment team/server asks for nvidia.com/gpu: 1 | unchanged" in made.report
    assert not (made.folder / "workloads").exists()
    assert "None has to be changed." in made.plan


def test_named_configs_are_rules_for_the_nodes_that_their_label_selects(migrate: Migrate) -> None:
    whole = {"version": "v1", "flags": {"migStrategy": "none"}}
    made = migrate(config_map(default=sharing(gpus(4)), by_ten=sharing(gpus(10)), whole=whole))
    assert made.values["consumableShares"] == 4
    assert made.values["sharingProfile"]["rules"] == [
        {"match": {"nodeLabels": {"nvidia.com/device-plugin.config": "by-ten"}}, "shares": 10},
        {"match": {"nodeLabels": {"nvidia.com/device-plugin.config": "whole"}}, "shares": "disabled"},
    ]
    assert len(parse_profile(yaml.safe_dump(made.values["sharingProfile"]), 48).rules) == 2


def test_named_config_that_says_only_its_version_is_whole_gpus(migrate: Migrate) -> None:
    made = migrate(config_map(default=sharing(gpus(4)), whole={"version": "v1"}))
    assert made.values["sharingProfile"]["rules"] == [
        {"match": {"nodeLabels": {"nvidia.com/device-plugin.config": "whole"}}, "shares": "disabled"}
    ]


def test_config_map_of_something_else_is_no_config(migrate: Migrate) -> None:
    made = migrate(config_map(any=sharing(gpus(4))), config_map(other={"version": "v1"}))
    assert (made.code, made.values["consumableShares"]) == (0, 4)


@pytest.mark.parametrize("order", [1, -1])
def test_default_of_the_gpu_operator_counts_wherever_it_stands(migrate: Migrate, order: int) -> None:
    config = {"name": "sharing", "default": "by-ten"}
    policy = {"kind": "ClusterPolicy", "metadata": {"name": "p"}, "spec": {"devicePlugin": {"config": config}}}
    objects = [config_map(a=sharing(gpus(4)), by_ten=sharing(gpus(10))), policy][::order]
    assert migrate(yaml.safe_dump_all(objects)).values["consumableShares"] == 10


def test_configs_of_which_none_is_the_default_need_a_decision(migrate: Migrate) -> None:
    maps = config_map(a=sharing(gpus(4)), b=sharing(gpus(10)))
    made = migrate(maps)
    assert made.code == 1
    assert "needs a decision" in made.printed
    assert "--default-config" in made.printed
    assert [rule["shares"] for rule in made.values["sharingProfile"]["rules"]] == [4, 10]


def test_default_config_can_be_said(migrate: Migrate) -> None:
    maps = config_map(a=sharing(gpus(4)), b=sharing(gpus(10)))
    assert migrate(maps, flags=("--default-config=b",)).values["consumableShares"] == 10


def test_renamed_resources_keep_their_names(migrate: Migrate) -> None:
    made = migrate(sharing(gpus(4), renameByDefault=True))
    assert made.values["deviceClasses"] == {"renameByDefault": True}


def test_names_that_only_some_configs_rename_get_a_class_of_their_own(migrate: Migrate) -> None:
    made = migrate(config_map(default=sharing(gpus(4)), other=sharing(gpus(2), renameByDefault=True)))
    (found,) = made.all("deviceclasses.yaml")
    assert found["spec"]["extendedResourceName"] == "nvidia.com/gpu.shared"
    assert "renameByDefault" not in made.values["deviceClasses"]


def test_one_share_a_request_is_a_limit_of_the_rule(migrate: Migrate) -> None:
    made = migrate(
        config_map(default={"version": "v1", "flags": {}}, ten=sharing(gpus(10), failRequestsGreaterThanOne=True))
    )
    assert made.values["sharingProfile"]["rules"][0]["maxPerClaim"] == 1


def test_mig_profiles_are_classes_and_rules(migrate: Migrate) -> None:
    config = sharing(gpus(3, "nvidia.com/mig-1g.10gb"), gpus(4), flags={"migStrategy": "mixed"})
    made = migrate(config)
    assert made.values["deviceClasses"]["migProfiles"] == ["1g.10gb"]
    assert made.values["sharingProfile"]["rules"] == [{"match": {"migProfile": "1g.10gb"}, "shares": 3}]
    assert made.values["consumableShares"] == 4


def test_mig_devices_by_the_name_of_gpus_get_a_class_for_it(migrate: Migrate) -> None:
    made = migrate(sharing(gpus(2), flags={"migStrategy": "single"}))
    (found,) = made.all("deviceclasses.yaml")
    assert found["spec"]["extendedResourceName"] == "nvidia.com/gpu"
    assert "type == 'mig'" in found["spec"]["selectors"][0]["cel"]["expression"]
    assert made.values["deviceClasses"]["extendedResourceName"] == ""


def test_mps_needs_a_decision_and_is_never_silently_no_sharing(migrate: Migrate) -> None:
    config = sharing(gpus(4), block="mps")
    made = migrate(config)
    assert made.code == 1
    assert "MPS is not mapped, since it is for one claim" in made.printed
    assert "consumableShares" not in made.values


def test_mps_becomes_shares_where_that_is_chosen_and_what_is_lost_is_said(migrate: Migrate) -> None:
    made = migrate(sharing(gpus(4), block="mps"), flags=("--mps-as=time-slicing",))
    assert made.values["consumableShares"] == 4
    assert "limits on threads are gone" in made.report


def test_mps_refuses_more_than_one_where_nothing_is_said(migrate: Migrate) -> None:
    made = migrate(
        config_map(default={"version": "v1", "flags": {}}, mps=sharing(gpus(4), block="mps")),
        flags=("--mps-as=time-slicing",),
    )
    assert made.values["sharingProfile"]["rules"][0]["maxPerClaim"] == 1


def test_mps_wins_over_time_slicing_beside_it_as_in_the_device_plugin(migrate: Migrate) -> None:
    both = sharing(gpus(4))
    both["sharing"]["mps"] = {"resources": [gpus(8)]}
    made = migrate(both, flags=("--mps-as=time-slicing",))
    assert made.values["consumableShares"] == 8
    assert "only MPS had an effect" in made.report


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (sharing(gpus(1)), "replicas: 1: must be a number from 2"),
        (sharing(gpus("ten")), "replicas: ten: must be a number"),
        (sharing({"replicas": 4}), "name: missing"),
        (sharing(), "resources: empty or missing"),
        ({**sharing(gpus(4)), "version": "v2"}, "version: v2: only v1 exists"),
        ({**sharing(gpus(4)), "sharings": {}}, "sharings:: unknown to the device plugin"),
        (sharing(gpus(4), flags={"migStrategy": "both"}), "flags.migStrategy: both: must be none, single, mixed"),
        (sharing(gpus(4, "rdma/ib")), "rdma/ib: only nvidia.com/gpu"),
        (sharing(gpus(4, "nvidia.com/mig-two")), "nvidia.com/mig-two: only nvidia.com/gpu"),
        (sharing({"name": "nvidia.com/gpu", "replica": 4}), "replicas: missing: must be a number from 2"),
        (sharing(gpus(4), flags={"gdsEnabled": True}), "gdsEnabled: true: not handed over"),
        ({"version": "v1", "sharing": {"slices": {}}}, "sharing.slices:: unknown to the device plugin"),
    ],
)
def test_what_is_wrong_or_unknown_is_told(migrate: Migrate, config: Json, told: str) -> None:
    made = migrate(config)
    assert made.code == 1
    assert told in made.printed


@pytest.mark.parametrize(("replicas", "shares"), [(48, 48), (50, 48), (16384, 48)])
def test_more_clients_than_a_card_serves_need_a_decision(migrate: Migrate, replicas: int, shares: int) -> None:
    made = migrate(sharing(gpus(replicas)))
    assert made.values["consumableShares"] == shares
    assert made.code == (0 if replicas == shares else 1)
    if made.code:
        assert f"{replicas} clients on a card, at most 48 are served" in made.printed


def test_settings_that_mean_nothing_here_are_lost_in_words(migrate: Migrate) -> None:
    config = sharing({**gpus(4), "devices": [0]}, flags={"plugin": {"deviceListStrategy": "envvar"}})
    made = migrate(config)
    assert made.code == 0
    assert "deviceListStrategy: envvar | containers get GPUs by CDI" in made.report
    assert "devices: [0] | the device plugin read and dropped it" in made.report


def test_full_gpus_beside_mig_devices_of_labelled_nodes_are_no_mapped_shares(migrate: Migrate) -> None:
    both = sharing(gpus(3, "nvidia.com/mig-1g.10gb"), gpus(8), flags={"migStrategy": "mixed"})
    made = migrate(config_map(default={"version": "v1", "flags": {}}, both=both))
    assert made.code == 1
    assert "8 x nvidia.com/gpu beside MIG profiles: no rule is written" in made.printed
    assert "8 shares" not in made.report
    assert [rule["match"].get("migProfile") for rule in made.values["sharingProfile"]["rules"]] == ["1g.10gb"]


def test_before_shares_existed_no_shares_are_promised(migrate: Migrate) -> None:
    made = migrate(sharing(gpus(4)), flags=("--kubernetes-version=1.34",))
    assert "4 shares" not in made.report
    assert "each workload that asks for it gets one named claim" in made.report


def test_report_counts_in_words(migrate: Migrate) -> None:
    made = migrate(sharing(gpus(50)))
    assert "\n1 needs a decision, 0 were wrong before, 0 lost, 0 mapped.\n" in made.report


# Platforms.


def test_bottlerocket_has_defaults_of_its_own(migrate: Migrate) -> None:
    toml = '[settings.kubelet-device-plugins.nvidia]\ndevice-sharing-strategy = "time-slicing"\n'
    made = migrate(toml, name="user.toml")
    assert (made.values["consumableShares"], made.values["deviceClasses"]) == (2, {"renameByDefault": True})
    assert made.code == 1
    assert "nvidia.enabled: true: set it to false" in made.printed


def test_bottlerocket_settings_count(migrate: Migrate) -> None:
    toml = """
[settings.kubelet-device-plugins.nvidia]
enabled = false
device-sharing-strategy = "time-slicing"
[settings.kubelet-device-plugins.nvidia.time-slicing]
replicas = 6
rename-by-default = false
"""
    made = migrate(toml, name="user.toml")
    assert (made.code, made.values["consumableShares"], made.values["deviceClasses"]) == (0, 6, {})


@pytest.mark.parametrize(("clients", "shares"), [(3, 3), (7, 6)])
def test_portal_export_is_checked_against_what_a_card_serves(migrate: Migrate, clients: int, shares: int) -> None:
    mig = {"strategy": "single", "profile": "1g.10gb"}
    made = migrate({"portal": "fpt", "workerGroup": "w", "mig": mig, "timeSlicing": {"maxSharedClients": clients}})
    assert made.values["consumableShares"] == shares
    if clients != shares:
        assert "7 MIG devices x 7 = 49 clients on a card, at most 48 are served: 6 shares" in made.printed


def test_layout_of_mig_parted_stays_and_counts(migrate: Migrate) -> None:
    layout = {"version": "v1", "mig-configs": {"sevenths": [{"devices": "all", "mig-devices": {"1g.10gb": 7}}]}}
    made = migrate(layout)
    assert made.code == 0
    assert "mig-configs.sevenths: 7 x 1g.10gb | stays with mig-manager" in made.report


def test_gke_node_pool_by_flags(migrate: Migrate) -> None:
    flags = "type=t4,count=1,gpu-sharing-strategy=time-sharing,max-shared-clients-per-gpu=4"
    script = f"gcloud container node-pools create p --accelerator {flags}\n"
    assert migrate(script, name="make.sh").values["consumableShares"] == 4


def test_gke_node_pool_by_description(migrate: Migrate) -> None:
    described = {"gpuSharingConfig": {"gpuSharingStrategy": "TIME_SHARING", "maxSharedClientsPerGpu": "3"}}
    made = migrate({"name": "p", "config": {"accelerators": [described]}})
    assert made.values["consumableShares"] == 3


def test_files_that_share_all_nodes_in_different_ways_are_told_apart_by_a_label(migrate: Migrate) -> None:
    made = migrate(sharing(gpus(4)), sharing(gpus(2)))
    assert made.code == 1
    labels = [rule["match"]["nodeLabels"]["gpu-sharing"] for rule in made.values["sharingProfile"]["rules"]]
    assert len(set(labels)) == 2
    assert all(f"gpu-sharing={label}" in made.plan for label in labels)


# Workloads.


def test_selectors_of_gke_are_dropped_and_the_way_back_has_them(migrate: Migrate) -> None:
    selector = {"cloud.google.com/gke-gpu-sharing-strategy": "time-sharing", "zone": "a"}
    made = migrate(deployment(nodeSelector=selector))
    (now,) = made.all("workloads/team-deployment-server.yaml")
    (before,) = made.all("before/team-deployment-server.yaml")
    assert now["spec"]["template"]["spec"]["nodeSelector"] == {"zone": "a"}
    assert before == deployment(nodeSelector=selector)
    assert "kubectl apply -f before/team-deployment-server.yaml" in made.plan


def test_what_the_api_server_added_is_not_written(migrate: Migrate) -> None:
    added = deployment(nodeSelector={"cloud.google.com/gke-gpu-sharing-strategy": "time-sharing"})
    last = "kubectl.kubernetes.io/last-applied-configuration"
    added["metadata"] |= {
        "uid": "u",
        "resourceVersion": "7",
        "managedFields": [],
        "annotations": {last: "{}", "mine": "x"},
    }
    added["status"] = {"replicas": 1}
    (now,) = migrate(added).all("workloads/team-deployment-server.yaml")
    assert now["metadata"] == {"name": "server", "namespace": "team", "annotations": {"mine": "x"}}
    assert "status" not in now


def test_claims_are_written_for_workloads_where_that_is_chosen(migrate: Migrate) -> None:
    made = migrate(deployment({"nvidia.com/gpu": 2, "cpu": "1"}), flags=("--workloads=claims",))
    template, changed = made.all("workloads/team-deployment-server.yaml")
    (request,) = template["spec"]["spec"]["devices"]["requests"]
    assert (template["kind"], template["metadata"]) == (
        "ResourceClaimTemplate",
        {"name": "server-gpu", "namespace": "team"},
    )
    assert request["exactly"] == {"deviceClassName": "gpu.nvidia.com", "count": 2}
    spec = changed["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert container["resources"] == {"limits": {"cpu": "1"}, "claims": [{"name": "gpu", "request": request["name"]}]}
    assert spec["resourceClaims"] == [{"name": "gpu", "resourceClaimTemplateName": "server-gpu"}]


def test_before_shares_existed_pods_of_a_workload_share_one_named_claim(migrate: Migrate) -> None:
    made = migrate(sharing(gpus(4)), deployment(), flags=("--kubernetes-version=1.34",))
    claim, changed = made.all("workloads/team-deployment-server.yaml")
    assert claim["kind"] == "ResourceClaim"
    assert claim["spec"]["devices"]["config"][0]["opaque"]["parameters"]["sharing"]["strategy"] == "TimeSlicing"
    assert changed["spec"]["template"]["spec"]["resourceClaims"][0]["resourceClaimName"] == "server-gpu"
    assert made.values["featureGates"] == {"TimeSlicingSettings": True}
    assert "all its pods share one GPU" in made.report


def test_before_shares_existed_claims_for_renamed_shares_name_the_class_of_gpus(migrate: Migrate) -> None:
    config = sharing(gpus(4), renameByDefault=True)
    made = migrate(config, deployment({"nvidia.com/gpu.shared": 1}), flags=("--kubernetes-version=1.34",))
    claim, _ = made.all("workloads/team-deployment-server.yaml")
    assert claim["spec"]["devices"]["requests"] == [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]


def test_before_shares_existed_a_named_claim_has_all_that_was_asked_and_no_time_slice_for_mig(migrate: Migrate) -> None:
    profiles = [gpus(2, "nvidia.com/mig-1g.10gb"), gpus(2, "nvidia.com/mig-2g.20gb")]
    config = sharing(*profiles, flags={"migStrategy": "mixed"})
    asked = {profile["name"]: 1 for profile in profiles}
    made = migrate(config, deployment(asked), flags=("--kubernetes-version=1.34",))
    claim, changed = made.all("workloads/team-deployment-server.yaml")
    devices = claim["spec"]["devices"]
    assert [each["exactly"]["deviceClassName"] for each in devices["requests"]] == [
        "mig-1g.10gb.nvidia.com",
        "mig-2g.20gb.nvidia.com",
    ]
    assert "config" not in devices
    (container,) = changed["spec"]["template"]["spec"]["containers"]
    assert [each["request"] for each in container["resources"]["claims"]] == ["mig-1g-10gb", "mig-2g-20gb"]


def test_before_shares_existed_workloads_that_shared_nothing_keep_a_device_for_each_pod(migrate: Migrate) -> None:
    config = sharing(gpus(2, "nvidia.com/mig-1g.10gb"), flags={"migStrategy": "mixed"})
    made = migrate(config, deployment(), flags=("--kubernetes-version=1.34",))
    assert made.all("workloads/team-deployment-server.yaml")[0]["kind"] == "ResourceClaimTemplate"


def test_before_shares_existed_it_is_asked_what_ran_on_whole_gpus(migrate: Migrate) -> None:
    maps = config_map(default={"version": "v1", "flags": {}}, four=sharing(gpus(4)))
    made = migrate(maps, deployment(), flags=("--kubernetes-version=1.34",))
    assert made.code == 1
    assert "Deployment team/server: its pods share one device now. Some nodes were not shared" in made.printed


def test_profiles_that_only_workloads_name_get_classes(migrate: Migrate) -> None:
    made = migrate(deployment({"nvidia.com/mig-1g.10gb": 1, "nvidia.com/mig-1g.10gb.me": 1}))
    assert made.code == 0
    assert made.values["deviceClasses"]["migProfiles"] == ["1g.10gb", "1g.10gb+me"]
    assert "mig-1g.10gb.me.nvidia.com" in made.plan


@pytest.mark.parametrize("name", ["nvidia.com/gpu.shared", "nvidia.com/mig-two"])
def test_name_that_no_class_serves_needs_a_decision_and_is_not_said_to_be_served(migrate: Migrate, name: str) -> None:
    made = migrate(sharing(gpus(4)), deployment({name: 1}))
    assert made.code == 1
    assert f"asks for {name}: no DeviceClass serves that name: ask for one of nvidia.com/gpu" in made.printed
    assert "DeviceClasses serve these names" not in made.report


def test_names_of_whole_gpus_beside_renamed_shares_are_not_ambiguous(migrate: Migrate) -> None:
    config = sharing(gpus(4), renameByDefault=True)
    assert migrate(config, deployment({"nvidia.com/gpu": 2})).code == 0


@pytest.mark.parametrize("kind", ["Pod", "Job"])
def test_what_cannot_be_changed_is_to_be_deleted_first(migrate: Migrate, kind: str) -> None:
    content = {**deployment(), "kind": kind}
    if kind == "Pod":
        content["spec"] = content["spec"]["template"]["spec"]
    made = migrate(content, flags=("--workloads=claims",))
    assert made.code == 1
    assert f"a {kind} cannot be changed: delete it, then apply" in made.printed


def test_plan_looks_at_all_that_the_device_plugin_offers(migrate: Migrate) -> None:
    plan = migrate(sharing(gpus(4), renameByDefault=True)).plan
    assert "-o jsonpath='{.status.allocatable}'   # none of nvidia.com/, or 0 each" in plan
    assert "# gpu.nvidia.com, gpu.shared.nvidia.com, mig.nvidia.com, mig.shared.nvidia.com\n" in plan
    assert "NAME-gpu" not in plan


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (deployment({"nvidia.com/gpu": 2}), "asks for 2 of nvidia.com/gpu: these are shares of as many devices"),
        (deployment(nodeSelector={"nvidia.com/gpu.product": "T4"}), "selects nodes by nvidia.com/gpu.product"),
    ],
)
def test_what_a_workload_meant_and_may_mean_now_is_asked(migrate: Migrate, content: Json, told: str) -> None:
    made = migrate(sharing(gpus(4)), content)
    assert made.code == 1
    assert told in made.printed


def test_quotas_and_limits_on_the_resource_are_told(migrate: Migrate) -> None:
    quota = {"kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": {"requests.nvidia.com/gpu": 4}}}
    pool = {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "p"}}
    pool |= {"spec": {"limits": {"nvidia.com/gpu": 8}}}
    made = migrate(quota, pool)
    assert "gpu.nvidia.com.deviceclass.resource.k8s.io/devices" in made.printed
    assert "limits nvidia.com/gpu: 8: nodes with DRA have no such resource" in made.printed


def test_nodes_are_in_the_plan_with_their_config(migrate: Migrate) -> None:
    labels = {"nvidia.com/device-plugin.config": "by-ten"}
    node = {
        "kind": "Node",
        "metadata": {"name": "n", "labels": labels},
        "status": {"allocatable": {"nvidia.com/gpu": "80"}},
    }
    assert "| n | nvidia.com/gpu: 80 | by-ten |" in migrate(node, config_map(by_ten=sharing(gpus(10)))).plan


# A cluster.


@pytest.fixture
def migrate_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Migrate:
    """From an API server with one pod that asks for a GPU."""

    def run(version: str, *flags: str) -> Migrated:
        with ApiServer(git_version=version) as server:
            spec = deployment()["spec"]["template"]["spec"]
            server.store.create(PODS, {"metadata": {"name": "p", "namespace": "default"}, "spec": spec})
            file = tmp_path / "kubeconfig"
            known = {"cluster": {"server": server.url}, "context": {"cluster": "c", "user": "u"}, "user": {}}
            lists = {f"{kind}s": [{"name": kind[0], kind: content}] for kind, content in known.items()}
            file.write_text(yaml.safe_dump({"current-context": "c", **lists}))
            code = main(["migrate", "--from-cluster", f"--kubeconfig={file}", "-o", str(tmp_path / "out"), *flags])
        out = capsys.readouterr()
        return Migrated(code, out.out + out.err, tmp_path / "out")

    return run


@pytest.mark.parametrize(
    ("version", "flags", "told"),
    [("v1.36.3", (), "1.36"), ("v1.34.4-eks-1", (), "1.34"), ("v1.34.4", ("--kubernetes-version=1.36",), "1.36")],
)
def test_cluster_says_its_version_itself(
    migrate_cluster: Migrate, version: str, flags: tuple[str, ...], told: str
) -> None:
    made = migrate_cluster(version, *flags)
    assert f"For Kubernetes {told}," in made.plan
    assert "| cluster | Pod default/p" in made.report


def test_cluster_that_is_too_old_is_told(migrate_cluster: Migrate) -> None:
    made = migrate_cluster("v1.30.1")
    assert made.code == 2
    assert "Kubernetes v1.30.1: must be 1.34 to 1.37; --kubernetes-version says for which one to write" in made.printed


# Files and folders.


def test_folder_that_holds_something_is_left_alone(migrate: Migrate, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("x")
    made = migrate(deployment())
    assert made.code == 2
    assert "exists and is not an empty folder" in made.printed
    assert [entry.name for entry in (tmp_path / "out").iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("text", "code", "told"),
    [
        ("a: [", 2, "in.yaml:1: not YAML"),
        ("- 1\n", 1, "no object"),
        ("something: else\n", 1, "keys something: not known: nothing was read from it"),
        ("[settings\n", 1, "TOML"),
    ],
)
def test_file_that_is_nothing_known_is_told(migrate: Migrate, text: str, code: int, told: str) -> None:
    made = migrate(text)
    assert (made.code, told in made.printed) == (code, True), made.printed


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["-o", "out"], "give files, or --from-cluster"),
        (["--from-cluster", "x.yaml", "-o", "out"], "give files, or --from-cluster, not both"),
        (["x.yaml", "-o", "out", "--kubernetes-version=1.30"], "must be 1.34 to 1.37"),
        (["gone.yaml", "-o", "out"], "gone.yaml cannot be read: No such file"),
    ],
)
def test_wrong_usage_is_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], told: str) -> None:
    assert main(["migrate", *arguments]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ({"kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"a": 1}}, "ConfigMap m: data.a: "),
        (
            {"kind": "Deployment", "metadata": {"name": "d"}, "spec": {"template": {"spec": {"containers": 1}}}},
            "containers: ",
        ),
        ({"kind": "Pod", "spec": {}}, "Pod: metadata: Field required"),
        ({"kind": "PodList", "items": [1]}, "no object"),
        (
            {"mig-configs": {"a": [{"mig-devices": {"1g.5gb": "many"}}]}},
            "1g.5gb: many: must be a number",
        ),
        ({"portal": "p", "timeSlicing": {"maxSharedClients": True}}, "True clients: must be a number from 2 to 48"),
    ],
)
def test_content_that_is_none_of_its_kind_is_told(migrate: Migrate, content: Json, told: str) -> None:
    made = migrate(content)
    assert made.code == 1
    assert told in made.printed
