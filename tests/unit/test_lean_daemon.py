"""What the node daemon must not load: memory and start-up time are features."""

import subprocess
import sys

import pytest

_LOADED = "import sys; import dra_driver.app; import dra_driver.devices.nvml; print(' '.join(sys.modules))"


@pytest.fixture(scope="module")
def loaded() -> set[str]:
    """Modules that a daemon on real GPUs has loaded when it starts."""
    finished = subprocess.run([sys.executable, "-c", _LOADED], check=True, capture_output=True, text=True, timeout=60)
    return set(finished.stdout.split())


@pytest.mark.parametrize(
    "module",
    [
        "pydantic",
        "dra_driver_api.config",
        "dra_driver.devices.scenario",
        "dra_driver.simulator",
        "kubernetes.client.models",
        "kubernetes.config.kube_config",
        "rich",
        "starlette",
        "uvicorn",
        "shtab",
        "grpc_health.v1",
    ],
)
def test_the_daemon_starts_without(loaded: set[str], module: str) -> None:
    assert module not in loaded


def test_the_list_above_is_looked_up_in_what_is_really_loaded(loaded: set[str]) -> None:
    assert {"grpc", "pynvml", "sqlite3", "prometheus_client"} <= loaded
