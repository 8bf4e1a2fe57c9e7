"""Field cases on settings that come from a chart: another kubelet directory, and gates that do not go together."""

from collections.abc import Callable

import pytest

from dra_driver.commands.main import main
from dra_driver.kubelet.plugin import WatchTimes
from dra_driver.simulator.kinds import NODES
from dra_driver.slices import other_publisher
from tests.builders import NODE, result
from tests.cases.driver import Driver
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
