"""Selectors evaluated by the CEL library, on devices as the driver publishes them."""

from typing import Any

import pytest

from dra_driver.scheduling.cel import Cel
from dra_driver.scheduling.selectors import SelectorError

OWN = "device.attributes['gpu.nvidia.com']"
DEVICE: dict[str, Any] = {
    "name": "gpu-0",
    "attributes": {
        "type": {"string": "gpu"},
        "index": {"int": 3},
        "spare": {"bool": True},
        "driverVersion": {"version": "580.159.4"},
        "resource.kubernetes.io/pcieRoot": {"string": "pci0000:01"},
    },
    "capacity": {"memory": {"value": "143771Mi"}},
}


@pytest.fixture(scope="module")
def cel() -> Cel:
    return Cel()


@pytest.mark.parametrize(
    ("expression", "selected"),
    [
        ("device.driver == 'gpu.nvidia.com'", True),
        (f"{OWN}.type == 'gpu' && {OWN}.index > 2", True),
        (f"{OWN}.spare", True),
        (f"{OWN}.index in [1, 2]", False),
        ("device.attributes['resource.kubernetes.io'].pcieRoot == 'pci0000:01'", True),
        ("device.allowMultipleAllocations", False),
        ("device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('80Gi')) >= 0", True),
        ("device.capacity['gpu.nvidia.com'].memory.isLessThan(quantity('80Gi'))", False),
        ("device.capacity['gpu.nvidia.com'].memory.asInteger() == 150755868672", False),
        ("device.capacity['gpu.nvidia.com'].memory.asInteger() == 143771 * 1024 * 1024", True),
        (f"{OWN}.driverVersion.isGreaterThan(semver('580.65.6'))", True),
        (f"{OWN}.driverVersion.compareTo(semver('580.159.4')) == 0", True),
        (f"{OWN}.driverVersion.major() == 580 && {OWN}.driverVersion.minor() == 159", True),
        ("isSemver('1.2') || isQuantity('1.5.5')", False),
        (f"has({OWN}.nothing)", False),
        ("has(device.attributes['other.example.com'].zone)", False),
        ("device.attributes['other.example.com'].?zone.orValue('a') == 'a'", True),
        ("'zone' in device.attributes['other.example.com']", False),
        ("cel.bind(own, device.attributes['gpu.nvidia.com'], own.type == 'gpu' && own.index == 3)", True),
        (f"{OWN}.type.lowerAscii().matches('^g')", True),
        (f"{OWN}.nothing == 1 || true", True),
    ],
)
def test_condition_is_evaluated_as_kubernetes_does(cel: Cel, expression: str, selected: bool) -> None:
    assert cel.compile_selector(expression)("gpu.nvidia.com", DEVICE) is selected


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        (f"{OWN}.nothing == 'a'", "fails on device gpu-0.*nothing"),
        ("device.attributes['other.example.com'].zone == 'a'", "fails on device gpu-0.*zone"),
        (f"{OWN}.index", "fails on device gpu-0: it gives 3"),
        (f"{OWN}.driverVersion.isLessThan(quantity('5'))", "a version cannot be compared with a quantity"),
    ],
)
def test_condition_that_fails_on_a_device_is_told_with_the_device(cel: Cel, expression: str, told: str) -> None:
    with pytest.raises(SelectorError, match=told):
        cel.compile_selector(expression)("gpu.nvidia.com", DEVICE)


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        ("device.driver ==", "cannot be compiled.*Syntax error"),
        ("sets.contains([1], [1])", "cannot be compiled.*undeclared reference to 'sets'"),
        ("1 + 1", "is no condition: it gives INT"),
        ("gpu == 1", "undeclared reference to 'gpu'"),
    ],
)
def test_what_is_no_condition_is_refused_before_any_device(cel: Cel, expression: str, told: str) -> None:
    with pytest.raises(SelectorError, match=told):
        cel.compile_selector(expression)


def test_attributes_of_another_driver_are_its_own(cel: Cel) -> None:
    matches = cel.compile_selector("device.attributes['net.example.com'].index == 3")
    assert matches("net.example.com", DEVICE)
    with pytest.raises(SelectorError):
        matches("gpu.nvidia.com", DEVICE)
