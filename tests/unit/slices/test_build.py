from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.model.devices import Device, DriverInfo, MemoryLimits
from dra_driver.ports import Json
from dra_driver.sharing.shares import WHOLE, ConsumableShares, SharesMode
from dra_driver.slices import build
from dra_driver.slices.build import build_slices, slice_objects
from tests.unit.slices.devices import DRIVER, H200, gpu, mig

GPU_ATTRIBUTES = {
    "type": {"string": "gpu"},
    "uuid": {"string": "GPU-4f0c6a52-7cfc-30e4-38c5-000000000001"},
    "productName": {"string": "NVIDIA H200"},
    "brand": {"string": "Nvidia"},
    "architecture": {"string": "Hopper"},
    "cudaComputeCapability": {"version": "9.0.0"},
    "driverVersion": {"version": "580.159.4"},
    "cudaDriverVersion": {"version": "13.0.0"},
    "addressingMode": {"string": "None"},
    "resource.kubernetes.io/pciBusID": {"string": "0000:00:06.0"},
    "resource.kubernetes.io/pcieRoot": {"string": "pci0000:00"},
    "resource.kubernetes.io/numaNode": {"int": 0},
}


def only(device: Device, driver: DriverInfo = DRIVER) -> Json:
    """The API entry of a node's only device."""
    (pool_slice,) = build_slices([device], driver, "node-1")
    (entry,) = pool_slice.devices
    return entry


def test_gpu_has_exactly_these_attributes_and_capacities() -> None:
    assert only(H200) == {
        "name": "gpu-0",
        "attributes": GPU_ATTRIBUTES,
        "capacity": {"memory": {"value": "143771Mi"}},
    }


def test_mig_device_has_exactly_these_attributes() -> None:
    device = mig(parent=H200, uuid="MIG-1")
    own = {
        "type": {"string": "mig"},
        "uuid": {"string": "MIG-1"},
        "parentUUID": {"string": H200.uuid},
        "profile": {"string": "1g.18gb"},
    }
    assert only(device)["attributes"] == GPU_ATTRIBUTES | own


def test_mig_device_has_exactly_these_capacities() -> None:
    assert only(mig(start=4, placement_size=2))["capacity"] == {
        "memory": {"value": "16Gi"},
        "multiprocessors": {"value": "16"},
        "copyEngines": {"value": "1"},
        "decoders": {"value": "1"},
        "encoders": {"value": "0"},
        "jpegEngines": {"value": "1"},
        "ofaEngines": {"value": "0"},
        "memorySlice4": {"value": "1"},
        "memorySlice5": {"value": "1"},
    }


def test_facts_that_are_not_known_are_absent() -> None:
    bare = gpu(memory_bytes=None, addressing_mode=None, numa_node=None, pcie_root=None)
    entry = only(bare, DriverInfo(driver_version="580.159.04"))
    assert "capacity" not in entry
    assert set(GPU_ATTRIBUTES) - set(entry["attributes"]) == {
        "cudaDriverVersion",
        "addressingMode",
        "resource.kubernetes.io/pcieRoot",
        "resource.kubernetes.io/numaNode",
    }


def test_negative_numa_node_is_absent_without_a_note() -> None:
    (pool_slice,) = build_slices([gpu(numa_node=-1)], DRIVER, "node-1")
    assert build.NUMA_NODE not in pool_slice.devices[0]["attributes"]
    assert pool_slice.notes == ()


def test_odd_attribute_costs_neither_device_nor_the_others() -> None:
    (pool_slice,) = build_slices([gpu(cuda_compute_capability="N/A")], DRIVER, "node-1")
    assert set(pool_slice.devices[0]["attributes"]) == set(GPU_ATTRIBUTES) - {"cudaComputeCapability"}


def test_odd_attribute_is_noted_with_device_name_and_value() -> None:
    (pool_slice,) = build_slices([gpu(3, cuda_compute_capability="N/A")], DRIVER, "node-1")
    assert pool_slice.notes == ("device gpu-3: attribute cudaComputeCapability left out: 'N/A' is not a valid version",)


def test_devices_are_in_numeric_order_of_minor_then_placement() -> None:
    devices: list[Device] = [gpu(10), mig(4, 2), mig(4, 0), gpu(2), mig(4, 10), gpu(0)]
    (pool_slice,) = build_slices(devices, DRIVER, "node-1")
    assert [entry["name"] for entry in pool_slice.devices] == [
        "gpu-0",
        "gpu-2",
        "gpu-4-mig-1g18gb-19-0",
        "gpu-4-mig-1g18gb-19-2",
        "gpu-4-mig-1g18gb-19-10",
        "gpu-10",
    ]


def test_device_keeps_its_name_when_another_drops_out() -> None:
    (pool_slice,) = build_slices([gpu(1)], DRIVER, "node-1")
    assert pool_slice.devices[0]["name"] == "gpu-1"


def test_node_without_devices_has_one_empty_slice() -> None:
    assert build_slices([], DRIVER, "node-1") == (build.PoolSlice(),)


def test_second_device_of_a_name_is_left_out_and_noted() -> None:
    (pool_slice,) = build_slices([gpu(1, uuid="GPU-a"), gpu(1, uuid="GPU-b")], DRIVER, "node-1")
    assert [entry["attributes"]["uuid"]["string"] for entry in pool_slice.devices] == ["GPU-a"]
    assert "GPU-b" in pool_slice.notes[0]


def test_device_whose_name_the_api_refuses_is_left_out_and_noted() -> None:
    (pool_slice,) = build_slices([gpu(0), mig(1, profile="x" * 60)], DRIVER, "node-1")
    assert [entry["name"] for entry in pool_slice.devices] == ["gpu-0"]
    assert "not a DNS label" in pool_slice.notes[0]


def test_facts_beyond_32_are_left_out_and_noted() -> None:
    (pool_slice,) = build_slices([mig(placement_size=10**9)], DRIVER, "node-1")
    (entry,) = pool_slice.devices
    assert len(entry["attributes"]) + len(entry["capacity"]) == 32
    assert "more than 32" in pool_slice.notes[0]


@pytest.mark.parametrize(("count", "sizes"), [(128, [128]), (129, [128, 1]), (257, [128, 128, 1])])
def test_slices_hold_128_devices(count: int, sizes: list[int]) -> None:
    pool = build_slices([gpu(minor) for minor in range(count)], DRIVER, "node-1")
    assert [len(pool_slice.devices) for pool_slice in pool] == sizes


@pytest.mark.parametrize(
    "extra",
    [
        {"taints": [{"key": "gpu.nvidia.com/xid", "effect": "NoSchedule"}]},
        {"consumesCounters": [{"counterSet": "gpu-0-counter-set", "counters": {}}]},
        {"attributes": {build.NUMA_NODE: {"ints": [0]}}},
    ],
    ids=["taints", "counters", "list-attributes"],
)
def test_one_device_with_extras_halves_the_slices(extra: Json) -> None:
    plain: Json = {"name": "gpu-0", "attributes": {"type": {"string": "gpu"}}}
    assert build.devices_per_slice([plain, plain | extra]) == 64


odd_text = st.text(alphabet=st.characters(exclude_categories=[]), max_size=90)
odd_gpus = st.builds(
    gpu,
    st.integers(0, 300),
    uuid=odd_text,
    product_name=odd_text,
    brand=odd_text,
    cuda_compute_capability=odd_text | st.just("9.0"),
    memory_bytes=st.none() | st.integers(),
    numa_node=st.none() | st.integers(),
    pcie_root=st.none() | odd_text,
)
odd_migs = st.builds(
    mig,
    st.integers(0, 20),
    st.integers(0, 20),
    profile=odd_text,
    placement_size=st.integers(-2, 100),
    memory_bytes=st.integers(),
)


@given(st.lists(odd_gpus | odd_migs, max_size=40), odd_text)
def test_slices_are_within_the_limits_of_the_api_whatever_the_devices(devices: list[Any], version: str) -> None:
    pool = build_slices(devices, DriverInfo(driver_version=version), "node-1")
    entries = [entry for pool_slice in pool for entry in pool_slice.devices]
    assert len({entry["name"] for entry in entries}) == len(entries)
    for entry in entries:
        assert len(entry["attributes"]) + len(entry.get("capacity", {})) <= 32
        for value in entry["attributes"].values():
            assert len(value) == 1
            assert len(str(*value.values()).encode()) <= 64


@given(st.lists(odd_gpus | odd_migs, max_size=20, unique_by=lambda device: device.name), st.randoms())
def test_slices_do_not_depend_on_the_order_of_the_devices(devices: list[Any], random: Any) -> None:
    shuffled = list(devices)
    random.shuffle(shuffled)
    assert build_slices(shuffled, DRIVER, "node-1") == build_slices(devices, DRIVER, "node-1")


def test_slice_object_is_what_the_api_takes() -> None:
    assert slice_objects(build_slices([], DRIVER, "node-1"), "node-1", "uid-1", 3) == [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {
                "generateName": "00000-gpu.nvidia.com-node-1-",
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "uid-1", "controller": True}
                ],
            },
            "spec": {
                "driver": "gpu.nvidia.com",
                "nodeName": "node-1",
                "pool": {"name": "node-1", "generation": 3, "resourceSliceCount": 1},
                "devices": [],
            },
        }
    ]


def test_slice_names_start_with_the_index_in_hex() -> None:
    assert build.name_prefix(26, "node-1") == "0001a-gpu.nvidia.com-node-1-"


def test_slice_name_prefix_is_cut_where_the_api_server_cuts() -> None:
    prefix = build.name_prefix(0, "ip-10-0-0-1.eu-central-1.compute.internal." + "x" * 100)
    assert prefix == "00000-gpu.nvidia.com-ip-10-0-0-1.eu-central-1.compute.inte"


def test_every_slice_tells_how_many_there_are() -> None:
    pool = build_slices([gpu(minor) for minor in range(129)], DRIVER, "node-1")
    counts = [item["spec"]["pool"]["resourceSliceCount"] for item in slice_objects(pool, "node-1", "uid-1", 1)]
    assert counts == [2, 2]


# Memory limits.

IN_TEN = ConsumableShares(SharesMode.COUNT, 10)


def limits(device: Device, shares: ConsumableShares) -> Json | None:
    """What a device says of memory limits."""
    (pool_slice,) = build_slices([device], DRIVER, "node-1", {device.name: shares})
    found: Json | None = pool_slice.devices[0]["attributes"].get("memoryLimits")
    return found


@pytest.mark.parametrize("known", list(MemoryLimits))
def test_shared_gpu_says_what_becomes_of_memory_limits(known: MemoryLimits) -> None:
    assert limits(replace(H200, memory_limits=known), IN_TEN) == {"string": known.value}


def test_whole_gpu_mig_device_and_gpu_nobody_has_looked_at_say_nothing_of_memory_limits() -> None:
    enforced = replace(H200, memory_limits=MemoryLimits.ENFORCED)
    assert limits(enforced, WHOLE) is None
    assert limits(mig(), IN_TEN) is None
    assert limits(H200, IN_TEN) is None
