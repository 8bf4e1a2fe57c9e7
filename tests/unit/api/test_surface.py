"""What the package offers, and what importing it costs."""

import subprocess
import sys

import pytest

import dra_driver_api.config


def test_all_names_are_there_and_sorted() -> None:
    offered = dra_driver_api.config.__all__
    assert offered == sorted(offered)
    assert [name for name in offered if not hasattr(dra_driver_api.config, name)] == []


@pytest.mark.parametrize(
    ("module", "banned"),
    [
        ("dra_driver_api.config", {"grpc", "google.protobuf", "kubernetes", "yaml", "sqlite3", "dra_driver"}),
        ("dra_driver_api.kubelet.dra_pb2", {"grpc", "pydantic", "dra_driver"}),
        ("dra_driver_api.names", {"grpc", "pydantic", "google.protobuf", "dra_driver"}),
    ],
)
def test_import_loads_nothing_it_does_not_need(module: str, banned: set[str]) -> None:
    code = f"import sys, {module}; print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=True)
    assert banned & set(done.stdout.split()) == set()


def test_all_stubs_import_together() -> None:
    modules = ", ".join(f"{name}_pb2_grpc" for name in ("registration", "dra", "health"))
    code = f"from dra_driver_api.kubelet import {modules}"
    subprocess.run([sys.executable, "-W", "error", "-c", code], timeout=50, check=True)
