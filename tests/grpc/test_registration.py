import logging
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from dra_driver.kubelet.registration import Registrar
from dra_driver.observe.readiness import Conditions
from tests.grpc.helpers import get_info, notify, register


@pytest.fixture
def conditions() -> Conditions:
    return Conditions(["registration"])


@pytest.fixture
def registrar(short_path: Path, conditions: Conditions) -> Iterator[Registrar]:
    registrar = Registrar(
        short_path / "gpu.nvidia.com-reg.sock",
        "gpu.nvidia.com",
        Path("/var/lib/kubelet/plugins/gpu.nvidia.com/dra.sock"),
        readiness=conditions,
    )
    registrar.start()
    yield registrar
    registrar.stop(0)


def message(conditions: Conditions) -> str:
    return str(conditions.report()["conditions"]["registration"]["message"])


def test_get_info_names_type_driver_endpoint_and_versions(registrar: Registrar) -> None:
    info = get_info(registrar.path)

    assert (info.type, info.name, info.endpoint, list(info.supported_versions)) == (
        "DRAPlugin",
        "gpu.nvidia.com",
        "/var/lib/kubelet/plugins/gpu.nvidia.com/dra.sock",
        ["v1.DRAPlugin", "v1alpha1.DRAResourceHealth"],
    )


def test_not_registered_until_the_kubelet_says_so(registrar: Registrar, conditions: Conditions) -> None:
    get_info(registrar.path)

    assert not registrar.registered
    assert f"waiting for the kubelet to ask at {registrar.path}" in message(conditions)


def test_registered_when_the_kubelet_says_so(registrar: Registrar, conditions: Conditions) -> None:
    register(registrar.path)

    assert registrar.registered
    assert conditions.ready


def test_refusal_is_answered_with_an_error(registrar: Registrar) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        notify(registrar.path, "versions are not supported")

    assert isinstance(caught.value, grpc.Call)
    assert caught.value.code() is grpc.StatusCode.INTERNAL


def test_refusal_is_kept_logged_and_told_in_readiness(
    registrar: Registrar, conditions: Conditions, caplog: pytest.LogCaptureFixture
) -> None:
    register(registrar.path)
    with pytest.raises(grpc.RpcError):
        notify(registrar.path, "versions are\nnot supported")

    assert not registrar.registered
    assert registrar.last_error == "versions are not supported"
    assert message(conditions).endswith("versions are not supported")
    assert any(record.levelno == logging.ERROR for record in caplog.records)


def test_registration_after_a_refusal_clears_the_error(registrar: Registrar, conditions: Conditions) -> None:
    with pytest.raises(grpc.RpcError):
        notify(registrar.path, "busy")

    register(registrar.path)

    assert (registrar.last_error, conditions.ready) == ("", True)


def test_stop_removes_the_socket(registrar: Registrar) -> None:
    registrar.stop(0)

    assert not registrar.path.exists()
    assert not registrar.registered
