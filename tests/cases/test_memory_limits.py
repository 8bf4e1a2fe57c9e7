"""Memory limits of claims that share a GPU: enforced where driver and hook can, observed elsewhere."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.cdi.hook_program import HOOKS, LIMITS
from dra_driver.cdi.rules import validate
from dra_driver.claims.store import STATE_FILE
from dra_driver.commands.main import main
from dra_driver.devices.driver_tree import STATE
from dra_driver.simulator.kinds import DEVICE_CLASSES, EVENTS, RESOURCE_CLAIMS
from dra_driver_api.kubelet import dra_pb2
from tests.builders import NODE, config_entry, result, time_slicing
from tests.cases.driver import U0, U1, Driver, node, nothing_left
from tests.unit.cdi import fake_tools

Json = dict[str, Any]

GATES = "TimeSlicingSettings=true,ConsumableShares=true"
POD = {"resource": "pods", "name": "greedy", "uid": "0b1c2d3e-4f50-4a61-8b72-93a4b5c6d7e8"}
NEWER = {"driver": {"version": "615.10.01", "cuda": "13.4", "memoryLimits": True}}
ENFORCED = """device.attributes["gpu.nvidia.com"].memoryLimits == "enforced\""""
METRIC = "nvidia_dra_memory_budget_exceeded_total"


def share(number: int, memory: str = "", device: str = "gpu-0", **more: Any) -> Json:
    """A share of a GPU; with memory, as where it is a capacity to ask for."""
    consumed = {"memory": memory} if memory else {"shares": "1", "memory": "0"}
    return result(device, shareID=f"00000000-0000-4000-a000-{number:012d}", consumedCapacity=consumed, **more)


class Sharing:
    """A driver whose GPUs are shared. hook: the nvidia-cdi-hook that it uses."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        driver.gates = GATES
        self.hook = fake_tools.hook(driver.directory / "toolkit" / "nvidia-cdi-hook", (*HOOKS, LIMITS))
        self.flags = ("--cdi-hooks=nvidia-cdi-hook", f"--nvidia-cdi-hook-path={self.hook}")

    def start(self, *flags: str, newer: bool = True, hooks: bool = True) -> Driver:
        """newer: with an NVIDIA driver that knows limits. hooks: with that program."""
        self.driver.scenario = node(**NEWER) if newer else node()
        self.driver.start("--consumable-shares=10", *(self.flags if hooks else ()), *flags)
        return self.driver

    def attributes(self) -> dict[str, str | None]:
        """Device -> what it says of memory limits."""
        found = self.driver.devices().items()
        return {name: device["attributes"].get("memoryLimits", {}).get("string") for name, device in found}

    def insisting(self, name: str, *results: Json) -> dra_pb2.Claim:
        """A claim whose selector asks for enforced limits."""
        return self.driver.claim(name, list(results), exactly={"selectors": [{"cel": {"expression": ENFORCED}}]})

    def reserve(self, claim: dra_pb2.Claim) -> None:
        """Give a claim to the pod."""
        found = self.driver.api.store.get(RESOURCE_CLAIMS, claim.name, "default")
        found["status"]["reservedFor"] = [POD]
        self.driver.api.store.replace(RESOURCE_CLAIMS, found, "default", status=True)

    def use(self, mebibytes: int) -> None:
        """Have a process of the pod use that much of GPU 0."""
        folder = self.driver.tree / "proc" / "4242"
        folder.mkdir(parents=True, exist_ok=True)
        slices = f"kubepods.slice/kubepods-pod{POD['uid'].replace('-', '_')}.slice"
        (folder / "cgroup").write_text(f"0::/{slices}/cri-containerd-{'ab' * 32}.scope\n")
        (self.driver.tree / STATE / U0 / "processes").write_text(f"4242 {mebibytes}\n")

    def exceeded(self) -> float:
        """The metric."""
        _, text = self.driver.get("/metrics")
        (line,) = (line for line in text.splitlines() if line.startswith(METRIC))
        return float(line.split()[-1])

    def pod_events(self) -> list[Json]:
        """Events on the pod."""
        return self.driver.api.store.find(EVENTS, fields=f"involvedObject.uid={POD['uid']}")


@pytest.fixture
def sharing(stopped: Driver) -> Sharing:
    return Sharing(stopped)


def edits(driver: Driver, claim: dra_pb2.Claim) -> dict[str, Json]:
    """Device -> its edits in the claim's CDI file, which must be one that runtimes load."""
    spec = driver.spec(claim)
    assert validate(spec) == []
    return {device["name"].removeprefix(f"{claim.uid}-"): device["containerEdits"] for device in spec["devices"]}


def limit_edits(hook: Path, tree: Path, uuid: str, mebibytes: int) -> Json:
    """What a limited device has beside its nodes."""
    return {
        "env": [f"NVIDIA_GPU_MEMORY_REQUEST={mebibytes}", f"NVIDIA_GPU_MEMORY_LIMIT={mebibytes}"],
        "hooks": [
            {
                "hookName": "createRuntime",
                "path": str(hook),
                "args": ["nvidia-cdi-hook", LIMITS, "--driver-root", str(tree), "--gpu-id", uuid],
                "env": ["NVIDIA_CTK_DEBUG=false"],
            }
        ],
    }


def test_limit_is_in_the_spec_where_the_driver_enforces_it(sharing: Sharing) -> None:
    driver = sharing.start()
    assert sharing.attributes() == {"gpu-0": "enforced", "gpu-1": "enforced"}

    claim = driver.claim("small", [share(1, "20Gi", "gpu-1")])
    driver.prepare(claim)

    (found,) = edits(driver, claim).values()
    assert {key: found.get(key) for key in ("env", "hooks")} == limit_edits(sharing.hook, driver.tree, U1, 20480)
    assert [node["path"] for node in found["deviceNodes"]] == ["/dev/nvidia1"]
    assert driver.unprepare(claim) == [""]
    assert nothing_left(driver)


def test_file_that_vanished_is_written_with_the_same_limit_after_a_restart(sharing: Sharing) -> None:
    driver = sharing.start()
    claim = driver.claim("small", [share(1, "20Gi")])
    driver.prepare(claim)
    before = driver.spec(claim)
    driver.stop()
    (driver.cdi / driver.files()[0]).unlink()
    sharing.start()
    driver.prepare(claim)
    assert driver.spec(claim) == before


def test_even_part_is_the_limit_of_a_claim_that_names_no_memory(sharing: Sharing) -> None:
    driver = sharing.start("--share-memory=even")
    claim = driver.claim("share", [share(1)])
    driver.prepare(claim)
    part = 150754820096 // 10 >> 20
    assert edits(driver, claim)["gpu-0"]["env"] == limit_edits(sharing.hook, driver.tree, U0, part)["env"]


def test_even_part_is_known_again_when_the_database_was_lost(sharing: Sharing) -> None:
    driver = sharing.start("--share-memory=even", newer=False)
    claim = driver.claim("share", [share(1)], config_entry(time_slicing("Long")))
    driver.prepare(claim)
    (before,) = driver.records()
    driver.stop()
    for file in driver.plugin.glob(f"{STATE_FILE}*"):
        file.unlink()
    sharing.start("--share-memory=even", newer=False)
    (after,) = driver.records()
    assert after.devices == before.devices


def test_claim_that_names_no_memory_has_no_limit_otherwise(sharing: Sharing) -> None:
    driver = sharing.start()
    claim = driver.claim("share", [share(1)])
    driver.prepare(claim)
    assert edits(driver, claim)["gpu-0"].keys() == {"deviceNodes"}


def test_gpus_with_different_limits_in_one_claim_are_refused_before_anything_is_done(sharing: Sharing) -> None:
    driver = sharing.start()
    refused = driver.refusal(driver.claim("two", [share(1, "20Gi"), share(2, "30Gi", "gpu-1")]))
    assert "(gpu-0 20480 MiB, gpu-1 30720 MiB)" in refused
    assert nothing_left(driver)

    claim = driver.claim("alike", [share(1, "20Gi"), share(2, "20Gi", "gpu-1")])
    driver.prepare(claim)
    assert [found["hooks"][0]["args"][-1] for found in edits(driver, claim).values()] == [U0, U1]


@pytest.mark.parametrize(
    ("settings", "hooks"),
    [
        pytest.param({"newer": False}, (*HOOKS, LIMITS), id="driver does not know limits"),
        pytest.param({}, HOOKS, id="hook program does not know limits"),
        pytest.param({"hooks": False}, (*HOOKS, LIMITS), id="no hooks"),
    ],
)
def test_what_lacks_one_part_observes_and_prepares_the_claim_without_edits(
    sharing: Sharing, settings: Json, hooks: tuple[str, ...]
) -> None:
    fake_tools.hook(sharing.hook, hooks)
    driver = sharing.start(**settings)
    assert sharing.attributes() == {"gpu-0": "observed", "gpu-1": "observed"}
    claim = driver.claim("small", [share(1, "20Gi")])
    driver.prepare(claim)
    assert edits(driver, claim)["gpu-0"].keys() == {"deviceNodes"}


def test_gpu_whose_driver_fails_to_tell_is_observed_beside_one_that_is_not(sharing: Sharing) -> None:
    failing = {"calls": [{"call": "memoryLimits", "error": "unknown", "gpu": 1}]}
    sharing.driver.scenario = node(**NEWER, failures=failing)
    sharing.driver.start("--consumable-shares=memory", *sharing.flags)
    sharing.driver.wait_for(lambda: sharing.attributes() == {"gpu-0": "enforced", "gpu-1": "observed"})


def test_slices_of_the_command_are_those_that_the_driver_publishes(
    sharing: Sharing, capsys: pytest.CaptureFixture[str]
) -> None:
    driver = sharing.start()
    flags = ("--consumable-shares=10", f"--feature-gates={GATES}", f"--simulated-node={driver.directory}/node.yaml")
    assert main(["inventory", "-o", "slices", f"--node-name={NODE}", *flags, *sharing.flags]) == 0
    (found,) = yaml.safe_load(capsys.readouterr().out)["items"]
    assert found["spec"]["devices"] == list(driver.devices().values())
    assert set(sharing.attributes().values()) == {"enforced"}


def test_gpus_that_are_not_shared_say_nothing_of_limits(stopped: Driver) -> None:
    stopped.scenario = node(**NEWER)
    stopped.start()
    assert [key for device in stopped.devices().values() for key in device["attributes"] if "memoryLimits" in key] == []


def test_pod_over_its_budget_is_told_and_counted_once_a_minute(sharing: Sharing) -> None:
    driver = sharing.start(newer=False)
    sharing.use(20481)
    claim = driver.claim("small", [share(1, "20Gi")])
    sharing.reserve(claim)
    assert sharing.exceeded() == 0

    driver.prepare(claim)

    (event,) = driver.wait_for(sharing.pod_events)
    assert (event["type"], event["reason"], event["metadata"]["namespace"]) == (
        "Warning",
        "GPUMemoryExceeded",
        "default",
    )
    assert event["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": "default",
        "name": "greedy",
        "uid": POD["uid"],
    }
    assert "claim default/small uses 20481 MiB of the memory of gpu-0 and may have 20480 MiB" in event["message"]
    driver.wait_for(lambda: sharing.exceeded() == 1)
    assert driver.app is not None
    driver.app._memory_watch.look()
    assert (sharing.exceeded(), len(sharing.pod_events())) == (1, 1)


def test_claim_prepared_before_a_restart_is_watched_after_it(sharing: Sharing) -> None:
    driver = sharing.start(newer=False)
    claim = driver.claim("small", [share(1, "20Gi")])
    sharing.reserve(claim)
    driver.prepare(claim)
    driver.stop()
    sharing.use(30000)
    sharing.start(newer=False)
    assert driver.wait_for(sharing.pod_events)


def test_claim_that_insists_is_refused_when_limits_are_gone_and_served_when_not(sharing: Sharing) -> None:
    driver = sharing.start()
    served = sharing.insisting("served", share(1, "20Gi"))
    late = sharing.insisting("late", share(2, "20Gi"))
    driver.prepare(served)

    fake_tools.hook(sharing.hook, HOOKS)
    driver.rescan()
    driver.wait_for(lambda: set(sharing.attributes().values()) == {"observed"})

    assert "demands memoryLimits == enforced, and on device gpu-0 it is observed" in driver.refusal(late)
    # Its containers are limited already.
    driver.prepare(served)
    assert edits(driver, served)["gpu-0"]["hooks"] != []
    assert driver.unprepare(served) == [""]
    assert nothing_left(driver)


def test_claim_whose_class_insists_is_refused_too(sharing: Sharing) -> None:
    fake_tools.hook(sharing.hook, HOOKS)
    driver = sharing.start()
    spec = {"selectors": [{"cel": {"expression": ENFORCED}}]}
    driver.api.store.create(DEVICE_CLASSES, {"metadata": {"name": "gpu-limited"}, "spec": spec})
    claim = driver.claim("small", [share(1, "20Gi")], exactly={"deviceClassName": "gpu-limited"})
    assert "demands memoryLimits == enforced" in driver.refusal(claim)
    assert nothing_left(driver)


def test_limits_that_come_with_a_newer_hook_are_told_without_a_restart(sharing: Sharing) -> None:
    fake_tools.hook(sharing.hook, HOOKS)
    driver = sharing.start()
    assert set(sharing.attributes().values()) == {"observed"}
    fake_tools.hook(sharing.hook, (*HOOKS, LIMITS))
    driver.rescan()
    driver.wait_for(lambda: set(sharing.attributes().values()) == {"enforced"})


def test_records_of_limits_survive_in_the_database(sharing: Sharing) -> None:
    driver = sharing.start()
    driver.prepare(driver.claim("small", [share(1, "20Gi")]))
    driver.prepare(driver.claim("free", [share(2)]))
    assert (driver.plugin / STATE_FILE).is_file()
    found = {record.claim.name: record.devices[0] for record in driver.records()}
    assert (found["small"].memory_budget, found["small"].memory_enforced) == (20 << 30, True)
    assert (found["free"].memory_budget, found["free"].memory_enforced) == (None, False)
