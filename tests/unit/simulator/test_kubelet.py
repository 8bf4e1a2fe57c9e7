"""The simulated kubelet against a small driver on real sockets."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_driver.simulator.claim_manager import ManagerError
from dra_driver.simulator.kinds import EVENTS, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.simulator.kubelet import Kubelet
from dra_driver.simulator.store import Store
from tests.unit.simulator.builders import NODE, claim, gpu_slice, pod, request, uuid_of
from tests.unit.simulator.fake_plugin import DRIVER, FakePlugin

Json = dict[str, Any]
SECONDS = 20.0


class Bench:
    """Kubelet, cluster and driver; pods are bound and claims allocated by hand."""

    def __init__(self, root: Path, wipe_seconds: float = 30.0) -> None:
        self.store = Store()
        self.plugin = FakePlugin(root)
        self.kubelet = Kubelet(self.store, NODE, self.plugin.registry, [self.plugin.cdi], wipe_seconds=wipe_seconds)

    def claim(self, name: str, *requests: str) -> None:
        listed = [request(r) for r in requests or ("gpu",)]
        made = self.store.create(RESOURCE_CLAIMS, claim(name, *listed))
        results = [
            {"request": r["name"], "driver": DRIVER, "pool": NODE, "device": f"gpu-{i}"} for i, r in enumerate(listed)
        ]
        made["status"] = {"allocation": {"devices": {"results": results}}}
        self.store.replace(RESOURCE_CLAIMS, made, status=True)

    def pod(self, body: Json, reserve: bool = True) -> None:
        claims = [entry["resourceClaimName"] for entry in body["spec"]["resourceClaims"]]
        made = self.store.create(PODS, body)
        for name in claims if reserve else ():
            held = self.store.get(RESOURCE_CLAIMS, name, "default")
            consumer = {"resource": "pods", "name": made["metadata"]["name"], "uid": made["metadata"]["uid"]}
            held["status"].setdefault("reservedFor", []).append(consumer)
            self.store.replace(RESOURCE_CLAIMS, held, status=True)
        self.store.patch(PODS, made["metadata"]["name"], {"spec": {"nodeName": NODE}}, "default")

    def runs(self, *names: str) -> None:
        self.wait(lambda: all(self.kubelet.containers(name) for name in names))

    def wait(self, condition: Callable[[], Any]) -> None:
        end = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < end, [e["message"] for e in self.store.find(EVENTS)]
            time.sleep(0.01)

    def events(self) -> list[str]:
        return [f"{e['reason']}: {e['message']}" for e in self.store.find(EVENTS)]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    made.plugin.start()
    made.kubelet.start()
    assert made.kubelet.plugins.wait_registered(DRIVER, SECONDS)
    yield made
    made.kubelet.stop()
    made.plugin.stop()


def test_driver_is_found_by_its_registration_socket(bench: Bench) -> None:
    bench.wait(lambda: bench.plugin.told)
    assert (bench.plugin.told[0].plugin_registered, bench.plugin.told[0].error) == (True, "")


@pytest.mark.parametrize(
    ("field", "value", "complaint"),
    [
        ("kind", "CSIPlugin", "plugin type 'CSIPlugin' is not 'DRAPlugin'"),
        ("name", "", "DRA driver name is empty"),
        ("versions", ["v9.DRAPlugin"], "none of the services v9.DRAPlugin is supported"),
    ],
)
def test_driver_that_does_not_fit_is_told_why(tmp_path: Path, field: str, value: Any, complaint: str) -> None:
    bench = Bench(tmp_path)
    setattr(bench.plugin, field, value)
    bench.plugin.start()
    bench.kubelet.plugins.look()
    bench.plugin.stop()
    bench.kubelet.plugins.stop()
    assert not bench.plugin.told[0].plugin_registered
    assert complaint in bench.plugin.told[0].error


def test_hidden_files_and_plain_files_are_no_plugins(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    (bench.plugin.registry / "note.txt").write_text("")
    bench.plugin.start()
    bench.plugin.registration.rename(bench.plugin.registry / ".hidden-reg.sock")
    bench.kubelet.plugins.look()
    bench.plugin.stop()
    assert bench.plugin.told == []


def test_container_gets_device_uuid_and_nodes(bench: Bench) -> None:
    bench.store.create(RESOURCE_SLICES, gpu_slice())
    bench.claim("shared")
    bench.pod(pod("p", claim_name="shared"))
    bench.runs("p")
    (container,) = bench.kubelet.containers("p")
    uid = bench.store.get(RESOURCE_CLAIMS, "shared", "default")["metadata"]["uid"]
    (device,) = container.devices
    assert (device.claim, device.request, device.gpu_uuid) == ("shared", "gpu", uuid_of(0))
    assert device.cdi_ids == (f"k8s.gpu.nvidia.com/claim={uid}-gpu-0",)
    assert container.edits.device_nodes == ["/dev/gpu-0"]


def test_pod_that_runs_says_so(bench: Bench) -> None:
    bench.claim("shared")
    bench.pod(pod("p", claim_name="shared"))
    bench.wait(lambda: bench.store.get(PODS, "p", "default")["status"]["phase"] == "Running")


def test_claim_of_two_pods_is_prepared_once_and_unprepared_after_both(bench: Bench) -> None:
    bench.claim("shared")
    for name in ("a", "b"):
        bench.pod(pod(name, claim_name="shared"))
    bench.runs("a", "b")
    bench.store.delete(PODS, "a", "default")
    bench.wait(lambda: len(bench.store.find(PODS)) == 1)
    assert bench.plugin.calls == [("prepare", "shared")]
    bench.store.delete(PODS, "b", "default")
    bench.wait(lambda: not bench.store.find(PODS))
    assert bench.plugin.calls == [("prepare", "shared"), ("unprepare", "shared")]


def test_containers_get_the_devices_of_the_request_they_name(bench: Bench) -> None:
    bench.plugin.devices = [("gpu-0", ("left",)), ("gpu-1", ("right",)), ("gpu-2", ())]
    bench.claim("both", "left", "right")
    body = pod("p", claim_name="both", containers=("one", "two", "all"))
    body["spec"]["containers"][0]["resources"]["claims"][0]["request"] = "left"
    body["spec"]["containers"][1]["resources"]["claims"][0]["request"] = "right"
    bench.pod(body)
    bench.runs("p")
    got = {c.name: [d.device for d in c.devices] for c in bench.kubelet.containers("p")}
    assert got == {"one": ["gpu-0", "gpu-2"], "two": ["gpu-1", "gpu-2"], "all": ["gpu-0", "gpu-1", "gpu-2"]}


def test_failed_prepare_is_an_event_in_the_kubelets_words(bench: Bench) -> None:
    bench.plugin.errors["bad"] = "no such luck"
    bench.claim("bad")
    bench.pod(pod("p", claim_name="bad"))
    bench.wait(bench.events)
    (event,) = bench.events()
    assert event == (
        "FailedPrepareDynamicResources: Failed to prepare dynamic resources: prepare dynamic resources: "
        "NodePrepareResources failed for ResourceClaim bad: no such luck"
    )


def test_failed_prepare_is_tried_again_and_counted(bench: Bench) -> None:
    bench.plugin.errors["bad"] = "not yet"
    bench.claim("bad")
    bench.pod(pod("p", claim_name="bad"))
    bench.wait(lambda: bench.plugin.calls.count(("prepare", "bad")) > 1)
    bench.plugin.errors.clear()
    bench.runs("p")
    (event,) = bench.store.find(EVENTS)
    assert event["count"] > 1


def test_skipped_claim_is_an_error(bench: Bench) -> None:
    bench.plugin.skip = True
    bench.claim("c")
    bench.pod(pod("p", claim_name="c"))
    bench.wait(bench.events)
    assert "NodePrepareResources skipped 1 ResourceClaims" in bench.events()[0]


def test_pod_without_reservation_is_refused(bench: Bench) -> None:
    bench.claim("c")
    bench.pod(pod("p", claim_name="c"), reserve=False)
    bench.wait(bench.events)
    assert "is not allowed to use ResourceClaim c" in bench.events()[0]
    assert bench.plugin.calls == []


def test_driver_that_is_away_is_named(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.claim("c")
    bench.pod(pod("p", claim_name="c"))
    bench.kubelet.start()
    bench.wait(bench.events)
    bench.kubelet.stop()
    assert "DRA driver gpu.nvidia.com is not registered" in bench.events()[0]


def test_cdi_device_without_spec_is_an_event(bench: Bench) -> None:
    bench.plugin.write_specs = False
    bench.claim("c")
    bench.pod(pod("p", claim_name="c"))
    bench.wait(bench.events)
    assert "unresolvable CDI devices k8s.gpu.nvidia.com/claim=" in bench.events()[0]


def test_force_deleted_pod_is_unprepared(bench: Bench) -> None:
    bench.claim("c")
    bench.pod(pod("p", claim_name="c"))
    bench.runs("p")
    bench.store.delete(PODS, "p", "default", grace_seconds=0)
    bench.wait(lambda: ("unprepare", "c") in bench.plugin.calls)


def test_pod_stays_until_unprepare_succeeds(bench: Bench) -> None:
    bench.claim("c")
    bench.pod(pod("p", claim_name="c"))
    bench.runs("p")
    bench.plugin.errors["c"] = "busy"
    bench.store.delete(PODS, "p", "default")
    bench.wait(lambda: bench.plugin.calls.count(("unprepare", "c")) > 1)
    assert len(bench.store.find(PODS)) == 1
    bench.plugin.errors.clear()
    bench.wait(lambda: not bench.store.find(PODS))


def test_pod_whose_prepare_failed_is_unprepared(bench: Bench) -> None:
    bench.plugin.errors["c"] = "no"
    bench.claim("c")
    bench.pod(pod("p", claim_name="c"))
    bench.wait(bench.events)
    bench.plugin.errors.clear()
    bench.store.delete(PODS, "p", "default")
    bench.wait(lambda: ("unprepare", "c") in bench.plugin.calls)


def test_restarted_driver_is_registered_anew_over_its_stale_socket(bench: Bench) -> None:
    before = bench.kubelet.plugins.plugin(DRIVER)
    bench.plugin.stop(leave_files=True)
    bench.plugin.start()
    bench.wait(lambda: bench.kubelet.plugins.connected(DRIVER) and bench.kubelet.plugins.plugin(DRIVER) is not before)
    bench.claim("c")
    bench.pod(pod("p", claim_name="c"))
    bench.runs("p")


def test_driver_whose_socket_went_is_deregistered(bench: Bench) -> None:
    bench.plugin.stop()
    assert bench.kubelet.plugins.wait_deregistered(DRIVER, SECONDS)


def test_asking_again_gives_the_first_answer(bench: Bench) -> None:
    bench.claim("c")
    bench.pod(pod("p", claim_name="c"))
    bench.runs("p")
    first = bench.kubelet.claims.first_answer("default", "c")
    assert first
    assert bench.kubelet.claims.ask_again("default", "c") == first


def test_asking_again_for_an_unknown_claim_is_an_error(bench: Bench) -> None:
    with pytest.raises(ManagerError, match="ResourceClaim c is not known"):
        bench.kubelet.claims.ask_again("default", "c")


def test_restarted_kubelet_prepares_again_for_the_next_pod(bench: Bench) -> None:
    bench.claim("c")
    bench.pod(pod("a", claim_name="c"))
    bench.runs("a")
    bench.kubelet.claims.forget_prepared()
    bench.pod(pod("b", claim_name="c"))
    bench.runs("b")
    assert bench.plugin.calls.count(("prepare", "c")) == 2
    assert [d.device for d in bench.kubelet.containers("b")[0].devices] == ["gpu-0", "gpu-0"]


def test_claim_made_anew_under_the_same_name_has_to_wait(bench: Bench) -> None:
    bench.claim("c")
    bench.pod(pod("a", claim_name="c"))
    bench.runs("a")
    bench.store.delete(RESOURCE_CLAIMS, "c", "default")
    bench.claim("c")
    bench.pod(pod("b", claim_name="c"))
    bench.wait(bench.events)
    assert "old ResourceClaim with same name c and different UID" in bench.events()[0]


def test_starting_kubelet_removes_the_nodes_slices(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.store.create(RESOURCE_SLICES, gpu_slice())
    bench.kubelet.start()
    bench.kubelet.stop()
    assert bench.store.find(RESOURCE_SLICES) == []


def test_slices_of_a_driver_that_stays_away_are_removed(tmp_path: Path) -> None:
    bench = Bench(tmp_path, wipe_seconds=0.1)
    bench.plugin.start()
    bench.kubelet.start()
    bench.wait(lambda: bench.kubelet.plugins.connected(DRIVER))
    bench.store.create(RESOURCE_SLICES, gpu_slice())
    bench.plugin.stop()
    bench.wait(lambda: not bench.store.find(RESOURCE_SLICES))
    bench.kubelet.stop()
