from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.cdi.spec import DeviceEdits, Edits, Env, build_spec, render, validate
from dra_driver.model.errors import CdiError
from tests.unit.cdi.documents import (
    SCHEMA,
    UID,
    claim_uids,
    common_edits,
    commons,
    device_lists,
    gpu_edits,
    mount,
    node,
)


def test_spec_of_one_gpu_has_the_agreed_names() -> None:
    document = build_spec(UID, [gpu_edits(3)], common_edits()).document()

    assert document["kind"] == "k8s.gpu.nvidia.com/claim"
    assert [device["name"] for device in document["devices"]] == [f"{UID}-gpu-3"]


def test_device_node_carries_numbers_mode_and_permissions() -> None:
    document = build_spec(UID, [gpu_edits(3)], common_edits()).document()

    assert document["devices"][0]["containerEdits"] == {
        "deviceNodes": [
            {
                "path": "/dev/nvidia3",
                "hostPath": "/dev/nvidia3",
                "type": "c",
                "major": 195,
                "minor": 3,
                "fileMode": 438,
                "permissions": "rwm",
            }
        ]
    }


def test_device_ids_are_those_of_the_file() -> None:
    spec = build_spec(UID, [gpu_edits(1), gpu_edits(0)], common_edits())

    written = yaml.safe_load(spec.text)
    assert spec.device_ids == tuple(f"{written['kind']}={device['name']}" for device in written["devices"])


def test_devices_are_sorted_whatever_the_order_of_the_claim() -> None:
    spec = build_spec(UID, [gpu_edits(2), gpu_edits(0), gpu_edits(1)], common_edits())

    assert [device.name for device in spec.devices] == ["gpu-0", "gpu-1", "gpu-2"]


def test_device_allocated_twice_in_a_claim_is_one_entry() -> None:
    spec = build_spec(UID, [gpu_edits(0), gpu_edits(0)], common_edits())

    assert [device.name for device in spec.devices] == ["gpu-0"]


def test_version_is_the_oldest_that_has_host_paths() -> None:
    assert build_spec(UID, [gpu_edits()], common_edits()).document()["cdiVersion"] == "0.5.0"


def test_node_closed_to_others_adds_its_group_and_the_version_that_knows_groups() -> None:
    document = build_spec(UID, [gpu_edits(file_mode=0o660, gid=44)], common_edits()).document()

    assert document["devices"][0]["containerEdits"]["additionalGids"] == [44]
    assert document["cdiVersion"] == "0.7.0"


def test_node_open_to_all_adds_no_group() -> None:
    document = build_spec(UID, [gpu_edits(gid=44)], common_edits()).document()

    assert "additionalGids" not in document["devices"][0]["containerEdits"]
    assert document["devices"][0]["containerEdits"]["deviceNodes"][0]["gid"] == 44


def test_text_has_no_anchors_though_options_repeat() -> None:
    text = build_spec(UID, [gpu_edits()], common_edits(mounts=(mount("a"), mount("b")))).text

    assert "&" not in text
    assert "*" not in text


def test_common_block_is_made_once_for_many_claims() -> None:
    common = common_edits()
    build_spec(UID, [gpu_edits(0)], common).text  # noqa: B018
    block = common.block

    assert build_spec(UID, [gpu_edits(1)], common).text.endswith(block)
    assert common.block is block


REFUSED: dict[str, tuple[list[DeviceEdits], Edits, str]] = {
    "no devices": ([], common_edits(), "devices is empty"),
    "device without nodes": (
        [DeviceEdits(name="gpu-0", edits=Edits())],
        common_edits(),
        "devices[gpu-0].containerEdits.deviceNodes is empty",
    ),
    "device with env alone": (
        [DeviceEdits(name="gpu-0", edits=Edits(env=(Env("A", "b"),)))],
        common_edits(),
        "devices[gpu-0].containerEdits.deviceNodes is empty",
    ),
    "common edits empty": ([gpu_edits()], Edits(), "containerEdits.deviceNodes is empty"),
    "common edits without libraries": ([gpu_edits()], common_edits(mounts=()), "containerEdits.mounts is empty"),
    "common edits without void": (
        [gpu_edits()],
        common_edits(env=()),
        "containerEdits.env lacks NVIDIA_VISIBLE_DEVICES=void",
    ),
    "common edits with a relative path": (
        [gpu_edits()],
        common_edits(mounts=(mount(host_path="lib/x"),)),
        "containerEdits.mounts[0].hostPath: found 'lib/x'",
    ),
    "device with a relative path": (
        [gpu_edits(path="nvidia0")],
        common_edits(),
        "devices[gpu-0].containerEdits.deviceNodes[0].path: found 'nvidia0'",
    ),
    "two edits for one device": (
        [gpu_edits(0), DeviceEdits(name="gpu-0", edits=Edits(device_nodes=(node(1),)))],
        common_edits(),
        "devices[gpu-0] is there twice",
    ),
    "device name with slash": (
        [DeviceEdits(name="../gpu", edits=Edits(device_nodes=(node(),)))],
        common_edits(),
        "devices[../gpu].name must be letters",
    ),
}


@pytest.mark.parametrize(("devices", "common", "text"), REFUSED.values(), ids=REFUSED.keys())
def test_spec_is_refused_with_the_place_when_edits_are(devices: Any, common: Edits, text: str) -> None:
    with pytest.raises(CdiError) as caught:
        build_spec(UID, devices, common)

    assert text in str(caught.value)
    assert UID in str(caught.value)


def test_claim_uid_that_no_device_name_can_carry_is_refused() -> None:
    with pytest.raises(CdiError, match="must be letters"):
        build_spec("a/b", [gpu_edits()], common_edits())


@given(claim_uids, device_lists, commons)
def test_text_is_one_yaml_document_equal_to_a_plain_dump(uid: str, devices: Any, common: Edits) -> None:
    spec = build_spec(uid, devices, common)

    assert list(yaml.safe_load_all(render(spec))) == [spec.document()]
    assert yaml.safe_load(yaml.safe_dump(spec.document())) == spec.document()


@given(claim_uids, device_lists, commons)
def test_every_spec_that_is_built_keeps_the_rules_and_the_schema(uid: str, devices: Any, common: Edits) -> None:
    document = build_spec(uid, devices, common).document()

    assert validate(document) == []
    jsonschema.Draft202012Validator(SCHEMA).validate(document)


@given(claim_uids, device_lists, st.randoms(use_true_random=False))
def test_text_does_not_depend_on_order_or_repetition(uid: str, devices: Any, random: Any) -> None:
    shuffled = [*devices, *devices]
    random.shuffle(shuffled)

    assert build_spec(uid, shuffled, common_edits()).text == build_spec(uid, devices, common_edits()).text
