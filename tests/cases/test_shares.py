"""Field cases on devices that several claims have shares of, as users of ``replicas: N`` know them."""

import os
from importlib import resources
from typing import Any

import pytest
import yaml

from dra_driver.claims.store import STATE_FILE
from dra_driver.commands.main import main
from dra_driver.devices.driver_tree import STATE
from dra_driver.model.errors import SettingError
from dra_driver.simulator.claim_manager import claim_names
from dra_driver.simulator.faults import Fault
from dra_driver.simulator.kinds import CLAIM_TEMPLATES, DEVICE_CLASSES, NAMESPACES, NODES, PODS, RESOURCE_CLAIMS
from dra_driver.simulator.scheduler import Scheduler
from dra_driver_api.kubelet import dra_pb2
from tests.builders import NODE, config_entry, gpu_config, result, time_slicing
from tests.cases.driver import U0, U1, Driver, cards, node, nothing_left, set_call

Json = dict[str, Any]

GATES = "TimeSlicingSettings=true,ConsumableShares=true"
LONG, SHORT, DEFAULT = (config_entry(time_slicing(word), "gpu") for word in ("Long", "Short", "Default"))
SEVEN = {"mig": [{"profile": "1g.18gb", "starts": [0, 1, 2, 3, 4, 5, 6]}]}


def share(number: int, device: str = "gpu-0", **more: Any) -> Json:
    """A result that is a share of a device."""
    return result(device, shareID=f"00000000-0000-4000-a000-{number:012d}", consumedCapacity={"shares": "1"}, **more)


@pytest.fixture
def sharing(stopped: Driver) -> Driver:
    """Not started; its gates are on, and GPU 0 is in four shares by a profile, GPU 1 whole."""
    stopped.gates = GATES
    write(stopped, "4")
    return stopped


def write(driver: Driver, shares: str, more: str = "") -> None:
    """Change the profile."""
    path = driver.directory / "profile.yaml"
    path.write_text(f"rules:\n- match: {{minor: 0}}\n  shares: {shares}\n  {more}\n")
    driver.environ = {"SHARING_PROFILE": str(path)}


def shares(driver: Driver) -> dict[str, str]:
    """Device -> shares that are published, ``shared`` where there is no number of them, ``whole`` for none."""
    return {
        name: device["capacity"].get("shares", {"value": "shared"})["value"]
        if device.get("allowMultipleAllocations")
        else "whole"
        for name, device in driver.devices().items()
    }


def wait_shares(driver: Driver, wanted: dict[str, str]) -> None:
    driver.rescan()
    driver.wait_for(lambda: shares(driver) == wanted)


# 58, 59


class Cluster:
    """Templates, pods of a Deployment, and a scheduler that places them on the driver's node."""

    def __init__(self, driver: Driver) -> None:
        self.driver, self.store = driver, driver.api.store
        text = resources.files("dra_driver.simulator").joinpath("device_classes.yaml").read_text()
        for device_class in yaml.safe_load_all(text):
            self.store.create(DEVICE_CLASSES, device_class)
        self._scheduler = Scheduler(self.store)

    def template(self, namespace: str, **exactly: Any) -> None:
        request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", **exactly}}
        spec = {"metadata": {"name": "share"}, "spec": {"spec": {"devices": {"requests": [request]}}}}
        self.store.create(CLAIM_TEMPLATES, spec, namespace)

    def pod(self, name: str, namespace: str) -> None:
        containers = [{"name": "main", "resources": {"claims": [{"name": "gpu"}]}}]
        claims = [{"name": "gpu", "resourceClaimTemplateName": "share"}]
        spec = {"containers": containers, "resourceClaims": claims}
        self.store.create(PODS, {"metadata": {"name": name}, "spec": spec}, namespace)

    def schedule(self) -> dict[str, list[str]]:
        """Place what fits: pod -> its devices, [] for a pod that waits."""
        self._scheduler.look()
        return {pod["metadata"]["name"]: [r["device"] for r in self._results(pod)] for pod in self.store.find(PODS)}

    def prepare(self, name: str, namespace: str) -> list[dra_pb2.Device]:
        (claim_name,) = filter(None, claim_names(self.store.get(PODS, name, namespace)).values())
        claim = self.store.get(RESOURCE_CLAIMS, claim_name, namespace)
        return self.driver.prepare(dra_pb2.Claim(namespace=namespace, name=claim_name, uid=claim["metadata"]["uid"]))

    def _results(self, pod: Json) -> list[Json]:
        if not pod["spec"].get("nodeName"):
            return []
        (name,) = filter(None, claim_names(pod).values())
        claim = self.store.get(RESOURCE_CLAIMS, name, pod["metadata"]["namespace"])
        found: list[Json] = claim["status"]["allocation"]["devices"]["results"]
        return found


def test_replicas_from_a_template_fill_one_gpu_after_the_other_from_any_namespace_and_the_fifth_waits(
    stopped: Driver,
) -> None:
    stopped.gates = GATES
    stopped.start("--consumable-shares=2")
    cluster = Cluster(stopped)
    pods = [(f"replica-{n}", "team-a" if n < 2 else "team-b") for n in range(5)]
    for namespace in ("team-a", "team-b"):
        stopped.api.store.create(NAMESPACES, {"metadata": {"name": namespace}})
        cluster.template(namespace)
    for pod in pods:
        cluster.pod(*pod)
    placed = cluster.schedule()
    assert list(placed.values()) == [["gpu-0"], ["gpu-0"], ["gpu-1"], ["gpu-1"], []]
    answers = [cluster.prepare(*pod) for pod in pods[:4]]
    assert [[device.device_name for device in answer] for answer in answers] == list(placed.values())[:4]
    assert len({answer[0].share_id for answer in answers}) == 4
    cluster.store.delete(PODS, "replica-0", "team-a", grace_seconds=0)
    cluster.schedule()
    assert cluster.schedule()["replica-4"] == ["gpu-0"]


@pytest.mark.parametrize(
    ("asked", "placed"), [("2", 2), ("3", 1), ("5", 0), ("1500m", 2)], ids=["2 of 4", "3 of 4", "5 of 4", "1.5 of 4"]
)
def test_pods_that_ask_for_several_shares_fit_as_the_sum_allows_and_are_prepared(
    sharing: Driver, asked: str, placed: int
) -> None:
    sharing.start("--consumable-shares=4")
    sharing.scenario = node(cards(U0))
    cluster = Cluster(sharing)
    selector = {"cel": {"expression": f"device.attributes['gpu.nvidia.com'].uuid == '{U0}'"}}
    cluster.template("default", capacity={"requests": {"shares": asked}}, selectors=[selector])
    for number in range(3):
        cluster.pod(f"pod-{number}", "default")
    found = [name for name, devices in cluster.schedule().items() if devices]
    assert len(found) == placed
    for name in found:
        assert cluster.prepare(name, "default")


def test_mig_devices_are_shared_like_gpus(stopped: Driver) -> None:
    stopped.gates, stopped.scenario = GATES, node(cards(U0, **SEVEN))
    stopped.start("--consumable-shares=3")
    cluster = Cluster(stopped)
    cluster.template("default", deviceClassName="mig.nvidia.com")
    for number in range(22):
        cluster.pod(f"pod-{number:02}", "default")
    placed = list(cluster.schedule().values())
    assert (sum(map(bool, placed)), placed[-1]) == (21, [])
    assert cluster.prepare("pod-20", "default")


# 93


@pytest.mark.parametrize(
    ("mode", "asked", "devices"),
    [
        ("memory", {}, ["gpu-0", "gpu-1", None]),
        ("memory", {"memory": "60Gi"}, ["gpu-0", "gpu-0", "gpu-1"]),
        ("4", {"memory": "100Gi"}, ["gpu-0", "gpu-1", None]),
        ("4", {}, ["gpu-0", "gpu-0", "gpu-0"]),
    ],
    ids=["all of it by default", "as much as asked for", "asked for with a share", "not asked for with a share"],
)
def test_memory_that_claims_ask_for_is_promised_once_and_what_they_do_not_ask_for_is_not(
    stopped: Driver, mode: str, asked: dict[str, str], devices: list[str | None]
) -> None:
    stopped.gates = GATES
    stopped.start(f"--consumable-shares={mode}")
    cluster = Cluster(stopped)
    cluster.template("default", **({"capacity": {"requests": asked}} if asked else {}))
    for number in range(3):
        cluster.pod(f"pod-{number}", "default")
    assert list(cluster.schedule().values()) == [[device] if device else [] for device in devices]


# 61, and configs of several claims on one card


def test_slice_is_set_by_the_first_sharer_and_set_back_by_the_last_over_restarts(sharing: Driver) -> None:
    sharing.start()
    monitor = sharing.claim("monitor", [share(9, adminAccess=True)])
    claims = [sharing.claim(f"sharer-{number}", [share(number)], LONG) for number in range(3)]
    for claim in (monitor, *claims):
        sharing.prepare(claim)
    for leaving in claims[:2]:
        assert sharing.unprepare(leaving) == [""]
        sharing.restart()
        assert sharing.time_slice(U0) == 3
    assert sharing.unprepare(claims[2]) == [""]
    assert sharing.tool_calls() == [set_call(U0, 3), set_call(U0, 0)]
    assert list(sharing.held()) == ["monitor"]


@pytest.mark.parametrize("other", [SHORT, DEFAULT, None], ids=["another interval", "default", "none"])
def test_share_with_another_config_is_refused_naming_the_holder_and_both(sharing: Driver, other: Json | None) -> None:
    sharing.start()
    sharing.prepare(sharing.claim("first", [share(1)], LONG))
    late = sharing.claim("late", [share(2)], *([other] if other else []))
    text = sharing.refusal(late)
    assert [word for word in ("gpu-0", "default/first", "TimeSlicing (interval Long)") if word not in text] == []
    assert ("no sharing config" in text) == (other is None)
    assert sharing.tool_calls() == [set_call(U0, 3)]
    assert list(sharing.held()) == ["first"]


def test_configs_that_are_written_differently_and_mean_the_same_live_together(sharing: Driver) -> None:
    sharing.start()
    sharing.prepare(sharing.claim("first", [share(1)], DEFAULT))
    bare = config_entry(gpu_config({"strategy": "TimeSlicing"}), "gpu")
    assert sharing.prepare(sharing.claim("second", [share(2)], bare))


def test_two_shares_of_one_gpu_in_one_claim_give_one_device_and_an_answer_for_each(sharing: Driver) -> None:
    sharing.start()
    claim = sharing.claim("pair", [share(1, request="a"), share(2, request="b")])
    answer = sharing.prepare(claim)
    assert [(d.request_names, d.device_name) for d in answer] == [(["a"], "gpu-0"), (["b"], "gpu-0")]
    assert len({device.share_id for device in answer}) == 2
    devices = sharing.spec(claim)["devices"]
    assert [f"k8s.gpu.nvidia.com/claim={device['name']}" for device in devices] == [*answer[0].cdi_device_ids]
    assert sharing.prepare(claim) == answer
    sharing.restart()
    assert sharing.prepare(claim) == answer
    assert sharing.unprepare(claim) == [""]
    assert nothing_left(sharing)


@pytest.mark.parametrize("amount", ["1500m", "0", "nonsense", "-1", "9999999999Gi"])
def test_odd_amounts_that_were_consumed_do_not_keep_a_claim_from_its_device(sharing: Driver, amount: str) -> None:
    sharing.start()
    odd = share(1) | {"consumedCapacity": {"shares": amount, "memory": amount}}
    claim = sharing.claim("odd", [odd])
    answer = sharing.prepare(claim)
    sharing.rescan()
    sharing.restart()
    assert sharing.prepare(claim) == answer
    assert sharing.unprepare(claim) == [""]


# --max-clients-per-gpu


def test_seven_partitions_in_seven_shares_are_not_offered_and_the_arithmetic_is_told(stopped: Driver) -> None:
    stopped.gates, stopped.scenario = GATES, node(cards(U0, **SEVEN), cards(U1, minor=[1]))
    stopped.start("--consumable-shares=7")
    assert shares(stopped) == {"gpu-1": "7"}
    (message,) = stopped.events("SharingRefused")
    assert f"7 MIG devices x 7 shares = 49 clients on {U0}" in message
    condition = stopped.readyz()[1]["sharing"]
    assert not condition["ok"]
    assert "49 clients" in condition["message"]


@pytest.mark.parametrize("mode", ["memory", "unlimited"])
def test_claim_beyond_the_ceiling_is_refused_before_anything_is_set(stopped: Driver, mode: str) -> None:
    stopped.gates = GATES
    stopped.start(f"--consumable-shares={mode}", "--max-clients-per-gpu=2")
    claims = [stopped.claim(f"claim-{number}", [share(number)]) for number in range(2)]
    for claim in claims:
        stopped.prepare(claim)
    late = stopped.claim("late", [share(3, "gpu-1"), share(4, request="other")], LONG)
    assert "client number 3" in stopped.refusal(late)
    assert "--max-clients-per-gpu=2" in stopped.refusal(late)
    assert stopped.tool_calls() == []
    assert sorted(stopped.held()) == ["claim-0", "claim-1"]
    for claim in claims:
        assert stopped.unprepare(claim) == [""]
    assert stopped.prepare(late)


# Changing how devices are shared


def test_changed_number_of_shares_is_published_and_live_claims_are_served_on(sharing: Driver) -> None:
    sharing.start()
    claims = [sharing.claim(f"claim-{number}", [share(number)], LONG) for number in range(3)]
    answers = [sharing.prepare(claim) for claim in claims]
    write(sharing, "2")
    wait_shares(sharing, {"gpu-0": "2", "gpu-1": "whole"})
    assert [sharing.prepare(claim) for claim in claims] == answers
    assert sharing.unprepare(*claims) == ["", "", ""]
    assert sharing.time_slice(U0) == 0
    assert nothing_left(sharing)


@pytest.mark.parametrize(
    ("before", "after", "held"),
    [("4", "disabled", share(1)), ("disabled", "4", result())],
    ids=["shared to whole", "whole to shared"],
)
def test_device_held_in_the_other_way_is_offered_again_when_its_last_claim_has_left(
    sharing: Driver, before: str, after: str, held: Json
) -> None:
    write(sharing, before)
    sharing.start()
    claim = sharing.claim("live", [held], LONG)
    answer = sharing.prepare(claim)
    write(sharing, after)
    wait_shares(sharing, {"gpu-1": "whole"})
    (message,) = sharing.events("DeviceWithheld")
    assert "default/live" in message
    sharing.restart()
    assert shares(sharing) == {"gpu-1": "whole"}
    assert sharing.prepare(claim) == answer
    assert sharing.unprepare(claim) == [""]
    wait_shares(sharing, {"gpu-0": "whole" if after == "disabled" else after, "gpu-1": "whole"})


def test_claim_of_before_the_change_that_comes_late_is_refused_while_the_other_way_is_in_use(sharing: Driver) -> None:
    sharing.start()
    early = sharing.claim("early", [share(1)])
    sharing.prepare(early)
    whole = sharing.claim("whole", [result()])
    assert "default/early" in sharing.refusal(whole)
    sharing.unprepare(early)
    assert sharing.prepare(whole)


def test_monitor_with_admin_access_keeps_no_device_from_being_offered(sharing: Driver) -> None:
    sharing.start()
    sharing.prepare(sharing.claim("monitor", [result(adminAccess=True)]))
    sharing.rescan()
    sharing.restart()
    assert shares(sharing) == {"gpu-0": "4", "gpu-1": "whole"}


def test_wrong_profile_leaves_the_last_one_and_is_told(sharing: Driver) -> None:
    sharing.start()
    write(sharing, "4", more="maxPerClam: 1")
    wait_shares(sharing, {"gpu-0": "4", "gpu-1": "whole"})
    message = sharing.condition("sharing")["message"]
    assert "line 4: rules[0].maxPerClam is not known" in message
    assert not sharing.condition("sharing")["ok"]
    write(sharing, "3", more="maxPerClaim: 1")
    wait_shares(sharing, {"gpu-0": "3", "gpu-1": "whole"})
    assert sharing.condition("sharing")["ok"]


@pytest.mark.parametrize("gone", [False, True], ids=["wrong", "no file"])
def test_driver_that_starts_anew_with_a_wrong_profile_goes_on_with_the_last_one(sharing: Driver, gone: bool) -> None:
    sharing.start()
    wait_shares(sharing, {"gpu-0": "4", "gpu-1": "whole"})
    write(sharing, "4", more="maxPerClam: 1")
    if gone:
        (sharing.directory / "profile.yaml").unlink()
    for _ in range(2):
        sharing.restart()
        assert shares(sharing) == {"gpu-0": "4", "gpu-1": "whole"}
        sharing.wait_for(lambda: not sharing.condition("sharing")["ok"])
        said = "cannot be read" if gone else "rules[0].maxPerClam is not known"
        assert said in sharing.condition("sharing")["message"]
    write(sharing, "3", more="maxPerClaim: 1")
    wait_shares(sharing, {"gpu-0": "3", "gpu-1": "whole"})
    assert sharing.condition("sharing")["ok"]


def test_profile_file_that_becomes_something_to_wait_for_stops_nothing(sharing: Driver) -> None:
    sharing.start()
    path = sharing.directory / "profile.yaml"
    path.unlink()
    os.mkfifo(path)
    sharing.rescan()
    assert "is not a regular file" in sharing.condition("sharing")["message"]
    assert shares(sharing) == {"gpu-0": "4", "gpu-1": "whole"}
    path.unlink()
    write(sharing, "3")
    wait_shares(sharing, {"gpu-0": "3", "gpu-1": "whole"})


def test_gpu_is_withdrawn_when_claims_of_before_it_had_a_number_have_all_of_it(sharing: Driver) -> None:
    write(sharing, "unlimited")
    sharing.start()
    claims = [
        sharing.claim(f"claim-{number}", [share(number) | {"consumedCapacity": {"memory": "0"}}]) for number in range(4)
    ]
    for claim in claims:
        sharing.prepare(claim)
    write(sharing, "4")
    wait_shares(sharing, {"gpu-1": "whole"})
    (message,) = sharing.events("DeviceWithheld")
    assert "4 are taken" in message
    assert sharing.unprepare(claims[0]) == [""]
    wait_shares(sharing, {"gpu-0": "4", "gpu-1": "whole"})


def test_mig_devices_wait_for_claims_that_share_their_card(sharing: Driver) -> None:
    write(sharing, "4")
    sharing.scenario = node(cards(U0, **SEVEN | {"migEnabled": False}), cards(U1, minor=[1]))
    sharing.start()
    claim = sharing.claim("live", [share(1)], LONG)
    sharing.prepare(claim)
    (sharing.tree / STATE / U0 / "mig_mode").write_text("enabled\n")
    wait_shares(sharing, {"gpu-1": "whole"})
    assert "its MIG mode was changed under them" in sharing.events("DeviceWithheld")[0]
    assert sharing.unprepare(claim) == [""]
    sharing.rescan()
    sharing.wait_for(lambda: len(sharing.devices()) == 8)
    assert nothing_left(sharing)


def test_gate_that_is_switched_off_lets_live_claims_go_on_and_keeps_their_gpu_for_them(sharing: Driver) -> None:
    sharing.start()
    claims = [sharing.claim(f"claim-{number}", [share(number)], LONG) for number in range(2)]
    answers = [sharing.prepare(claim) for claim in claims]
    sharing.gates, sharing.environ = "TimeSlicingSettings=true", {}
    sharing.restart()
    assert shares(sharing) == {"gpu-1": "whole"}
    assert [sharing.prepare(claim) for claim in claims] == answers
    assert "until live claims have left: gpu-0" in sharing.condition("sharing")["message"]
    assert sharing.unprepare(*claims) == ["", ""]
    assert sharing.time_slice(U0) == 0
    wait_shares(sharing, {"gpu-0": "whole", "gpu-1": "whole"})


def test_gpu_that_is_lost_while_shared_lets_its_claims_go(sharing: Driver) -> None:
    sharing.start()
    claims = [sharing.claim(f"claim-{number}", [share(number)], LONG) for number in range(2)]
    for claim in claims:
        sharing.prepare(claim)
    (sharing.tree / STATE / U0 / "gone").touch()
    wait_shares(sharing, {"gpu-1": "whole"})
    assert "not on this node" in sharing.refusal(sharing.claim("late", [share(3)], LONG))
    assert sharing.unprepare(*claims) == ["", ""]
    assert nothing_left(sharing)


def test_instances_of_a_rolling_update_with_other_profiles_serve_each_others_claims(sharing: Driver) -> None:
    sharing.pod_uid = "11111111-1111-4111-8111-111111111111"
    sharing.start()
    early, late = sharing.claim("early", [share(1)], LONG), sharing.claim("late", [share(2)], SHORT)
    answer = sharing.prepare(early)
    other = sharing.successor("22222222-2222-4222-8222-222222222222")
    other.environ = {}
    try:
        other.start("--consumable-shares=2")
        assert other.prepare(early) == answer
        assert "default/early" in other.refusal(late)
        sharing.rescan()
        assert shares(sharing) == {"gpu-0": "4", "gpu-1": "whole"}
        sharing.stop()
        wait_shares(other, {"gpu-0": "2", "gpu-1": "2"})
        assert other.unprepare(early) == [""]
        assert other.prepare(late)
    finally:
        other.stop()


def test_claims_whose_records_were_lost_with_the_api_server_away_have_their_shares_again_when_it_is_back(
    sharing: Driver,
) -> None:
    sharing.start()
    claims = [sharing.claim(f"claim-{number}", [share(number)], LONG) for number in range(2)]
    for claim in claims:
        sharing.prepare(claim)
    before = {record.claim.uid: record.devices for record in sharing.records()}
    sharing.stop()
    for file in sharing.plugin.glob(f"{STATE_FILE}*"):
        file.unlink()
    sharing.api.faults.order(Fault(status=503), times=1000, path="/resourceclaims")
    sharing.start()
    assert shares(sharing) == {"gpu-1": "whole"}
    sharing.api.faults.clear()
    assert sharing.app is not None
    sharing.app._sweep.run()
    wait_shares(sharing, {"gpu-0": "4", "gpu-1": "whole"})
    assert {record.claim.uid: record.devices for record in sharing.records()} == before
    assert sharing.prepare(sharing.claim("next", [share(3)], LONG))


ODD_IDS = {"not a UUID": "share one", "very long": "x" * 5000, "control characters": "a\nb\0", "empty": ""}


@pytest.mark.parametrize("identity", ODD_IDS.values(), ids=ODD_IDS)
def test_odd_identities_of_shares_are_given_back_as_they_came(sharing: Driver, identity: str) -> None:
    sharing.start()
    claim = sharing.claim("odd", [share(1) | {"shareID": identity}])
    (device,) = sharing.prepare(claim)
    assert device.share_id == identity
    sharing.restart()
    assert list(sharing.prepare(claim)) == [device]
    assert sharing.unprepare(claim) == [""]
    assert nothing_left(sharing)


@pytest.mark.parametrize("order", [(1, 1), (1, 2, 2), (1, 2, 1)], ids=repr)
def test_share_that_is_in_a_claim_twice_is_refused(sharing: Driver, order: tuple[int, ...]) -> None:
    sharing.start()
    text = sharing.refusal(sharing.claim("twice", [share(n, request=f"r{at}") for at, n in enumerate(order)]))
    assert "allocated twice to claim default/twice" in text
    assert nothing_left(sharing)


def test_profile_by_node_labels_follows_this_node(sharing: Driver) -> None:
    path = sharing.directory / "profile.yaml"
    path.write_text("rules:\n- match: {nodeLabels: {pool: dev}, minor: 1}\n  shares: 5\n")
    labelled = {"metadata": {"labels": {"pool": "dev"}}}
    sharing.api.store.patch(NODES, NODE, labelled)
    sharing.start()
    assert shares(sharing) == {"gpu-0": "whole", "gpu-1": "5"}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("rules:\n- {match: {minor: 0}, shares: some}\n", "line 2: rules[0].shares is 'some'"),
        (None, "cannot be read: No"),
    ],
    ids=["wrong rule", "no file"],
)
def test_wrong_profile_ends_the_first_start(stopped: Driver, content: str | None, said: str) -> None:
    stopped.gates, path = GATES, stopped.directory / "profile.yaml"
    if content:
        path.write_text(content)
    with pytest.raises(SettingError) as caught:
        stopped.start(f"--sharing-profile={path}")
    assert str(path) in str(caught.value)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--sharing-profile=/profile.yaml"], "--sharing-profile requires feature gate ConsumableShares"),
        (["--feature-gates=ConsumableShares=true", "--consumable-shares=49"], "49 clients on a GPU, at most 48"),
        (["--max-clients-per-gpu=0"], 'invalid value for --max-clients-per-gpu: "0"'),
        (["--feature-gates=ConsumableShares=true", "--consumable-shares=many"], "'memory', 'unlimited', or a positive"),
    ],
    ids=["gate off", "too many", "no clients", "no number"],
)
def test_wrong_sharing_ends_the_start_with_one_line(
    capsys: pytest.CaptureFixture[str], flags: list[str], said: str
) -> None:
    assert main(["run", "--node-name=node-a", "--simulated-node=h200x2", *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
