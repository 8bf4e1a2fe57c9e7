"""GPUs that fail under running pods: what the kubelet is told, and so what users read in the pod's status."""

import pytest

from dra_driver.model.errors import DriverNotReady
from dra_driver_api.kubelet import health_pb2
from tests.builders import NODE, result
from tests.cases.driver import U0, U1, Driver, cards, node
from tests.grpc.helpers import health_stream, healths

BOTH = {"gpu-0": "HEALTHY", "gpu-1": "HEALTHY"}
GONE = [{"afterScans": 1, "gpu": 1, "gone": True}]


def told(driver: Driver) -> dict[str, health_pb2.DeviceHealth]:
    """What a kubelet that asks now is told first, by device."""
    with health_stream(driver.socket) as stream:
        return {found.device.device_name: found for found in next(stream).devices}


def test_gpu_that_vanishes_is_told_at_once_to_the_pod_that_has_it(stopped: Driver) -> None:
    stopped.scenario = node(changes=GONE)
    stopped.start()
    assert stopped.app is not None
    stopped.app._device_health._repeat_seconds = 3600.0
    stopped.prepare(stopped.claim("mine", [result("gpu-1")]))
    with health_stream(stopped.socket) as stream:
        assert healths(stream) == BOTH
        stopped.rescan()
        found = {each.device.device_name: each for each in next(stream).devices}
    assert (found["gpu-0"].health, found["gpu-0"].message) == (health_pb2.HEALTHY, "")
    assert found["gpu-1"].device.pool_name == NODE
    assert found["gpu-1"].health == health_pb2.UNHEALTHY
    assert f"device gpu-1 was {U1} when its claim was prepared" in found["gpu-1"].message
    assert "delete the claim's pods" in found["gpu-1"].message


def test_gpu_that_vanished_while_the_driver_was_down_is_told_from_the_state(driver: Driver) -> None:
    claim = driver.claim("mine", [result("gpu-1")])
    driver.prepare(claim)
    driver.stop()
    driver.scenario = node(cards(U0))
    driver.start()
    assert {name: found.health for name, found in told(driver).items()} == {
        "gpu-0": health_pb2.HEALTHY,
        "gpu-1": health_pb2.UNHEALTHY,
    }
    assert driver.unprepare(claim) == [""]
    assert list(told(driver)) == ["gpu-0"]


def test_other_card_behind_the_name_is_no_healthy_gpu_for_the_pod_that_had_the_old_one(driver: Driver) -> None:
    driver.prepare(driver.claim("mine", [result("gpu-0")]))
    driver.stop()
    driver.scenario = node(cards(U0, U1, minor=[1, 0]))
    driver.start()
    found = told(driver)
    assert found["gpu-0"].health == health_pb2.UNHEALTHY
    assert "that is gpu-1 now" in found["gpu-0"].message
    assert found["gpu-1"].health == health_pb2.HEALTHY


def test_health_is_unknown_with_the_reason_while_nvml_fails_and_known_again_after(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> None:
        raise DriverNotReady("NVML does not list the GPUs: no answer within 60 s")

    assert driver.app is not None
    with monkeypatch.context() as patched:
        patched.setattr(driver.app._hardware.source, "scan", fails)
        driver.rescan()
        for found in told(driver).values():
            assert found.health == health_pb2.UNKNOWN
            assert "no answer within 60 s" in found.message
    driver.rescan()
    assert {name: found.health for name, found in told(driver).items()} == dict.fromkeys(BOTH, health_pb2.HEALTHY)


def test_gpu_is_unhealthy_for_the_pod_that_has_it_once_the_nvidia_driver_is_gone(driver: Driver) -> None:
    driver.prepare(driver.claim("mine", [result("gpu-1")]))
    assert driver.app is not None
    driver.app._seen(None)
    (found,) = told(driver).values()
    assert (found.device.device_name, found.health) == ("gpu-1", health_pb2.UNHEALTHY)
    assert "this node has no NVIDIA driver now" in found.message


def test_stream_that_is_opened_before_nvml_is_there_waits_for_the_gpus(stopped: Driver) -> None:
    stopped.scenario = node(failures={"nvml": {"notLoadableScans": 2}})
    stopped.start(wait=False)
    with health_stream(stopped.socket) as stream:
        assert healths(stream) == BOTH


def test_driver_stops_while_the_kubelet_watches(driver: Driver) -> None:
    with health_stream(driver.socket) as stream:
        assert healths(stream) == BOTH
        driver.stop()
        assert list(stream) == []
