"""Field cases on settings that come from a chart: another kubelet directory, and gates that do not go together."""

from collections.abc import Callable, Iterator

import pytest

from dra_driver.commands.main import main
from dra_driver.kubelet import other_driver
from dra_driver.kubelet.plugin import WatchTimes
from dra_driver.simulator.kinds import NODES, RESOURCE_SLICES
from dra_driver.slices import other_publisher
from dra_driver_api.names import socket_names
from tests.builders import NODE, result
from tests.cases.driver import U0, Driver, Json
from tests.fakes.other_driver import VERSIONS, OtherDraDriver
from tests.grpc import helpers

RUN = ("run", "--node-name=node-a", "--simulated-node=h200x2")

# 70


def test_driver_is_registered_and_serves_in_a_relocated_kubelet_directory(stopped: Driver) -> None:
    root = stopped.directory / "var" / "lib" / "k0s" / "kubelet"
    stopped.registry, stopped.plugin = root / "plugins_registry", root / "plugins" / "gpu.nvidia.com"
    stopped.tree = stopped.plugin / "simulated-node"
    stopped.registry.mkdir(parents=True)
    stopped.start()
    info = helpers.register(stopped.registry / "gpu.nvidia.com-reg.sock")
    assert info.endpoint == str(stopped.socket)
    assert stopped.prepare(stopped.claim("training", [result()]))
    assert stopped.condition("registration")["ok"]


def test_missing_registry_is_told_at_once_by_its_path_and_the_flag(stopped: Driver) -> None:
    stopped.registry.rmdir()
    stopped.start()
    code, conditions = stopped.readyz()
    assert code == 503
    assert str(stopped.registry) in conditions["registration"]["message"]
    assert "--kubelet-registrar-directory-path" in conditions["registration"]["message"]


def test_kubelet_that_never_asks_is_told_within_a_minute() -> None:
    assert WatchTimes().unasked <= 60


# 72


@pytest.fixture
def refusal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """The one line with which a start ends that a wrong environment was given to."""

    def run(**environment: str) -> str:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        assert main(RUN) == 2
        (line,) = capsys.readouterr().err.splitlines()
        return line

    return run


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"CONSUMABLE_SHARES": "4"}, ["--consumable-shares", "ConsumableShares=true"]),
        ({"FEATURE_GATES": "DynamicMIG=true,MPSSupport=true"}, ["DynamicMIG", "MPSSupport", "mutually exclusive"]),
        ({"FEATURE_GATES": "TimeSlicing=true"}, ["TimeSlicing=true", "did you mean TimeSlicingSettings?"]),
    ],
    ids=["shares without their gate", "exclusive gates", "unknown gate"],
)
def test_settings_that_conflict_end_the_start_naming_both(
    refusal: Callable[..., str], environment: dict[str, str], said: list[str]
) -> None:
    line = refusal(**environment)
    assert [word for word in said if word not in line] == []


@pytest.mark.parametrize("gates", ["TimeSlicingSettings=true,MPSSupport=false,", "ConsumableShares=true"])
def test_trailing_comma_and_a_gate_of_shares_without_their_number_start_the_driver(stopped: Driver, gates: str) -> None:
    stopped.gates = gates
    stopped.start()
    assert stopped.prepare(stopped.claim("training", [result()]))


def test_empty_number_of_shares_starts_the_driver_with_shares_off(stopped: Driver) -> None:
    stopped.gates = "ConsumableShares=true"
    stopped.environ = {"CONSUMABLE_SHARES": ""}
    stopped.start()
    assert not [d for d in stopped.devices().values() if d.get("allowMultipleAllocations")]


# 85


def offer_by_device_plugin(driver: Driver, gpus: int) -> None:
    patch = {"status": {"allocatable": {"nvidia.com/gpu": str(gpus)}}}
    driver.api.store.patch(NODES, NODE, patch, status=True)


@pytest.mark.parametrize("choice", ["refuse", "warn"])
def test_node_that_a_device_plugin_serves_too_offers_nothing_unless_told_otherwise(
    stopped: Driver, monkeypatch: pytest.MonkeyPatch, choice: str
) -> None:
    monkeypatch.setattr(other_publisher, "_AGE_S", 0.0)
    offer_by_device_plugin(stopped, 2)
    stopped.start(f"--device-plugin-conflict={choice}", wait=False)
    (told,) = stopped.events("DevicePluginPresent")
    assert "a device plugin offers GPUs of this node (nvidia.com/gpu: 2)" in told
    if choice == "refuse":
        stopped.wait_for(lambda: stopped.slices() and not stopped.devices())
        assert not stopped.condition("device plugin")["ok"]
        offer_by_device_plugin(stopped, 0)
        stopped.rescan()
    stopped.wait_for(lambda: set(stopped.devices()) == {"gpu-0", "gpu-1"})
    assert stopped.condition("device plugin")["ok"]


def test_claims_of_a_node_outlive_a_device_plugin_that_comes(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_publisher, "_AGE_S", 0.0)
    claim = driver.claim("training", [result()])
    devices = driver.prepare(claim)
    offer_by_device_plugin(driver, 2)
    driver.rescan()
    driver.wait_for(lambda: not driver.devices())
    assert driver.prepare(claim) == devices
    assert driver.unprepare(claim) == [""]


@pytest.fixture
def nvidias(stopped: Driver, monkeypatch: pytest.MonkeyPatch) -> Iterator[OtherDraDriver]:
    """NVIDIA's DRA driver on the same node, not started yet. Ours looks for it at every turn."""
    monkeypatch.setattr(other_driver, "_AGE_S", 0.0)
    made = OtherDraDriver(stopped.registry, stopped.plugin.parent)
    yield made
    made.stop()


def nvidias_slice(driver: Driver) -> Json:
    """What NVIDIA's driver publishes, in the pool that ours would have."""
    pool = {"name": NODE, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.nvidia.com", "nodeName": NODE, "pool": pool, "devices": [{"name": "gpu-0"}]}
    return driver.api.store.create(RESOURCE_SLICES, {"metadata": {"name": "00000-nvidias"}, "spec": spec})


@pytest.mark.parametrize("pod_uid", ["", "pod-a"])
def test_driver_beside_nvidias_leaves_it_its_sockets_and_slices_until_it_has_left(
    stopped: Driver, nvidias: OtherDraDriver, pod_uid: str
) -> None:
    nvidias.start()
    theirs = nvidias_slice(stopped)
    stopped.pod_uid = pod_uid
    stopped.start(wait=False)
    (told,) = stopped.events("OtherDriverPresent")
    assert str(nvidias.registration) in told
    stopped.wait_for(lambda: stopped.condition("slices")["message"] == "nothing is published beside another driver")
    assert stopped.slices() == [theirs]
    code, conditions = stopped.readyz()
    assert (code, conditions["other driver"]["ok"], conditions["registration"]["ok"]) == (503, False, False)
    assert helpers.get_info(nvidias.registration).supported_versions == list(VERSIONS)
    nvidias.stop()
    stopped.wait_for(lambda: stopped.condition("other driver")["ok"])
    stopped.rescan()
    stopped.wait_for(lambda: set(stopped.devices()) == {"gpu-0", "gpu-1"})
    registration, _ = socket_names(pod_uid)
    stopped.wait_for((stopped.registry / registration).is_socket)
    helpers.register(stopped.registry / registration)
    stopped.wait_for(lambda: stopped.readyz()[0] == 200)


def test_claims_of_a_node_outlive_nvidias_driver_that_comes(stopped: Driver, nvidias: OtherDraDriver) -> None:
    stopped.pod_uid = "pod-a"
    stopped.start()
    claim = stopped.claim("training", [result()])
    devices = stopped.prepare(claim)
    nvidias.start()
    stopped.wait_for(lambda: not stopped.condition("registration")["ok"])
    stopped.rescan()
    stopped.wait_for(lambda: not stopped.slices())
    assert stopped.held() == {"training": (U0,)}
    nvidias.stop()
    stopped.wait_for(lambda: stopped.condition("other driver")["ok"])
    stopped.rescan()
    stopped.wait_for(lambda: set(stopped.devices()) == {"gpu-0", "gpu-1"})
    assert stopped.prepare(claim) == devices
    assert stopped.unprepare(claim) == [""]


def test_claims_that_end_beside_nvidias_driver_are_let_go(stopped: Driver, nvidias: OtherDraDriver) -> None:
    """The kubelet asks NVIDIA's driver to unprepare them, which knows nothing of them."""
    stopped.pod_uid = "pod-a"
    stopped.start()
    claims = [stopped.claim("training", [result()]), stopped.claim("serving", [result("gpu-1")])]
    for claim in claims:
        stopped.prepare(claim)
    nvidias.start()
    stopped.wait_for(lambda: "not registered beside another" in stopped.condition("registration")["message"])

    def sweep_twice() -> None:
        """A completed claim goes when it is found gone a second time."""
        assert stopped.app is not None
        stopped.app._sweep.run()
        stopped.app._sweep.run()

    sweep_twice()
    assert set(stopped.held()) == {"training", "serving"}
    stopped.delete(claims[0])
    sweep_twice()
    assert set(stopped.held()) == {"serving"}
    stopped.stop()
    stopped.delete(claims[1])
    stopped.start(wait=False)
    sweep_twice()
    assert (stopped.held(), stopped.files()) == ({}, [])


def test_nvidias_driver_that_restarts_again_and_again_has_no_slices_come_and_go(
    stopped: Driver, nvidias: OtherDraDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(other_driver, "_FIRST_PATIENCE_S", 1000.0)
    stopped.pod_uid = "pod-a"
    stopped.start()

    def look() -> None:
        """As the threads do that register, publish and discover."""
        assert stopped.app is not None
        for _ in range(3):
            stopped.app._other_driver.in_the_way()
        stopped.rescan()

    for _ in range(2):
        nvidias.start()
        look()
        stopped.wait_for(lambda: not stopped.slices())
        nvidias.stop()
        look()
    version = stopped.api.store.version
    for _ in range(5):
        nvidias.start()
        look()
        nvidias.stop()
        look()
    assert stopped.api.store.changes_since(RESOURCE_SLICES, version) == []
    assert "since it comes and goes" in stopped.condition("other driver")["message"]
    assert len(stopped.events("OtherDriverPresent")) == 2
    monkeypatch.setattr(other_driver, "_FIRST_PATIENCE_S", 0.0)
    stopped.wait_for(lambda: stopped.condition("other driver")["ok"])
    stopped.rescan()
    stopped.wait_for(lambda: set(stopped.devices()) == {"gpu-0", "gpu-1"})


def test_driver_beside_nvidias_offers_all_the_same_when_told_to_warn(stopped: Driver, nvidias: OtherDraDriver) -> None:
    nvidias.start()
    stopped.pod_uid = "pod-a"
    stopped.start("--device-plugin-conflict=warn")
    (told,) = stopped.events("OtherDriverPresent")
    assert "GPUs may be used twice" in told
    assert set(stopped.devices()) == {"gpu-0", "gpu-1"}
    helpers.register(stopped.registry / "gpu.nvidia.com-pod-a-reg.sock")
    assert stopped.condition("registration")["ok"]


def test_rolling_update_is_no_other_driver(stopped: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_driver, "_AGE_S", 0.0)
    stopped.pod_uid = "old"
    stopped.start()
    new = stopped.successor("new")
    new.start()
    try:
        for each in (stopped, new):
            each.rescan()
            helpers.register(each.registry / f"gpu.nvidia.com-{each.pod_uid}-reg.sock")
            code, conditions = each.readyz()
            assert (code, "other driver" in conditions) == (200, False)
        assert set(stopped.devices()) == {"gpu-0", "gpu-1"}
    finally:
        new.stop()
