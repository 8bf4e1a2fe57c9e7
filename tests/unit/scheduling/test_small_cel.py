"""The CEL subset of device selectors."""

from typing import Any

import pytest

from dra_driver.scheduling.selectors import SelectorError
from dra_driver.scheduling.small_cel import compile_selector
from tests.unit.simulator.builders import gpu_device

DRIVER = "gpu.nvidia.com"
DEVICE = gpu_device(
    0,
    productName={"string": "NVIDIA H200"},
    **{"resource.kubernetes.io/numaNode": {"int": 1}, "good": {"bool": True}, "cuda": {"version": "13.0.0"}},
)


@pytest.mark.parametrize(
    ("expression", "matches"),
    [
        ("device.driver == 'gpu.nvidia.com'", True),
        ("device.driver != 'gpu.nvidia.com'", False),
        ("device.attributes['gpu.nvidia.com'].type == 'gpu'", True),
        ('device.attributes["gpu.nvidia.com"].type == "mig"', False),
        ("device.driver == 'x' && device.attributes['gpu.nvidia.com'].none == 'a'", False),
        ("device.attributes['resource.kubernetes.io'].numaNode == 1", True),
        ("device.attributes['gpu.nvidia.com'].good == true", True),
        ("device.driver == 'gpu.nvidia.com' &&\n  device.attributes['gpu.nvidia.com'].type == 'gpu'", True),
        ("device.attributes['gpu.nvidia.com'].productName == 'a && b'", False),
    ],
)
def test_selector(expression: str, matches: bool) -> None:
    assert compile_selector(expression)(DRIVER, DEVICE) is matches


@pytest.mark.parametrize(
    "expression",
    [
        "device.driver == 'a' || device.driver == 'b'",
        "device.attributes['gpu.nvidia.com'].productName.matches('H.*')",
        "device.capacity['gpu.nvidia.com'].memory == '1'",
        "true",
        "",
    ],
)
def test_selector_beyond_the_subset_is_named(expression: str) -> None:
    with pytest.raises(SelectorError, match=r"is beyond this allocator: it knows device\.driver"):
        compile_selector(expression)


@pytest.mark.parametrize(
    ("expression", "complaint"),
    [
        ("device.attributes['gpu.nvidia.com'].index == 0", "no such key: index"),
        ("device.attributes['gpu.nvidia.com'].type == 3", "no such overload"),
    ],
    ids=["missing attribute", "other type"],
)
def test_selector_that_fails_on_a_device(expression: str, complaint: str) -> None:
    with pytest.raises(SelectorError, match=complaint):
        compile_selector(expression)(DRIVER, DEVICE)


def test_attribute_of_another_domain_is_not_the_drivers() -> None:
    device: dict[str, Any] = {"name": "gpu-0", "attributes": {"type": {"string": "gpu"}}}
    with pytest.raises(SelectorError, match="no such key"):
        compile_selector("device.attributes['other.example.com'].type == 'gpu'")(DRIVER, device)


@pytest.mark.parametrize("shared", [True, False, None])
@pytest.mark.parametrize(("wanted", "operator"), [("true", "=="), ("false", "=="), ("true", "!=")])
def test_selector_picks_devices_that_are_shared_or_that_are_not(
    shared: bool | None, wanted: str, operator: str
) -> None:
    device: dict[str, Any] = {"name": "gpu-0"} | ({} if shared is None else {"allowMultipleAllocations": shared})
    matches = compile_selector(f"device.allowMultipleAllocations {operator} {wanted}")
    assert matches(DRIVER, device) == (bool(shared) == ((wanted == "true") == (operator == "==")))
