"""What the kubelet is told of devices that are on offer and of those that claims hold."""

from dataclasses import replace

import pytest

from dra_driver.claims.health import device_health
from dra_driver.model.devices import Device, Gpu, Inventory
from dra_driver.model.health import DeviceHealth, Health
from dra_driver.model.plan import Plan, PreparedDevice
from dra_driver.model.records import ClaimRecord, ClaimState
from tests.builders import DRIVER, NODE, claim_ref, gpu_uuid, make_gpu, make_inventory, make_mig

U0, U1, U2 = (gpu_uuid(number) for number in range(3))
XID = "if it fell off the bus, the node's kernel log has an Xid error"
REMEDY = "delete the claim's pods so that it is unprepared and allocated again"
MIG_CARD = make_gpu(0, mig_enabled=True)
MIG = make_mig(MIG_CARD)


def held(device: Device, number: int = 1) -> ClaimRecord:
    """The record of a claim that was prepared on a device."""
    prepared = PreparedDevice(
        requests=("gpu",),
        pool=NODE,
        device=device.name,
        uuid=device.uuid,
        gpu_uuid=device.physical.uuid,
        cdi_ids=(f"k8s.gpu.nvidia.com/claim={number}",),
    )
    return ClaimRecord(
        claim=claim_ref(number), state=ClaimState.COMPLETED, plan=Plan(devices=(prepared,)), prepared_at=1.0
    )


def on_node(*gpus: Gpu) -> Inventory:
    return Inventory(driver=DRIVER, gpus=gpus)


def healthy(name: str) -> DeviceHealth:
    return DeviceHealth(pool=NODE, device=name, health=Health.HEALTHY)


def message_for(record: ClaimRecord, inventory: Inventory, doubt: str = "") -> str:
    """Of the one device that the claim holds, which must be unhealthy."""
    (device,) = record.devices
    found = {each.device: each for each in device_health(NODE, inventory, [record], doubt)}
    assert found[device.device].health is Health.UNHEALTHY
    return found[device.device].message


def test_every_device_on_offer_is_healthy_whether_or_not_a_claim_holds_it() -> None:
    assert device_health(NODE, make_inventory(2), [held(make_gpu(1))]) == (healthy("gpu-0"), healthy("gpu-1"))


def test_mig_devices_are_told_and_not_the_gpu_that_carries_them() -> None:
    inventory = Inventory(driver=DRIVER, gpus=(MIG_CARD,), mig_devices=(MIG,))

    assert device_health(NODE, inventory, [held(MIG)]) == (healthy(MIG.name),)


def test_gpu_that_is_gone_is_unhealthy_for_its_claim_and_the_others_stay_healthy() -> None:
    found = device_health(NODE, on_node(make_gpu(0)), [held(make_gpu(0), 1), held(make_gpu(1), 2)])

    assert found == (
        healthy("gpu-0"),
        DeviceHealth(
            pool=NODE,
            device="gpu-1",
            health=Health.UNHEALTHY,
            message=f"device gpu-1 was {U1} when its claim was prepared, but the NVIDIA driver does not list that GPU "
            f"now ({XID}): {REMEDY}",
        ),
    )


def test_gpu_that_is_gone_and_that_no_claim_holds_is_not_told() -> None:
    assert device_health(NODE, on_node(make_gpu(0)), [held(make_gpu(0))]) == (healthy("gpu-0"),)


def test_other_card_behind_the_name_is_unhealthy_naming_both() -> None:
    message = message_for(held(make_gpu(0)), on_node(make_gpu(0, uuid=U2)))

    assert f"does not list that GPU now and {U2} has its name ({XID})" in message
    assert U0 in message


def test_card_that_was_numbered_anew_is_unhealthy_naming_its_new_name() -> None:
    swapped = on_node(make_gpu(0, uuid=U1), make_gpu(1, uuid=U0))

    message = message_for(held(make_gpu(0)), swapped)

    assert f"but that is gpu-1 now, since the NVIDIA driver has numbered its GPUs anew: {REMEDY}" in message


def test_gpu_that_was_put_into_mig_mode_under_its_claim_is_unhealthy() -> None:
    message = message_for(held(make_gpu(0)), on_node(MIG_CARD))

    assert message == (f"device gpu-0 was {U0} when its claim was prepared, but that GPU is in MIG mode now: {REMEDY}")


@pytest.mark.parametrize(
    ("inventory", "reason"),
    [
        (on_node(make_gpu(0)), f"its GPU {U0} is not in MIG mode now"),
        (on_node(MIG_CARD), f"its GPU {U0} has no such MIG device now"),
        (on_node(make_gpu(1)), f"the NVIDIA driver does not list its GPU {U0} now ({XID})"),
        (
            replace(on_node(MIG_CARD), mig_devices=(make_mig(MIG_CARD, uuid="MIG-new"),)),
            f"its GPU {U0} has no such MIG device now and MIG-new has its name",
        ),
    ],
    ids=["MIG mode off", "device removed", "GPU gone", "device made anew"],
)
def test_mig_device_that_is_gone_is_unhealthy_with_the_reason(inventory: Inventory, reason: str) -> None:
    assert f"but {reason}: {REMEDY}" in message_for(held(MIG), inventory)


def test_what_was_healthy_is_unknown_with_the_reason_while_nvml_fails() -> None:
    found = device_health(NODE, make_inventory(1), [held(make_gpu(0))], "NVML does not list the GPUs")

    assert found == (
        DeviceHealth(pool=NODE, device="gpu-0", health=Health.UNKNOWN, message="NVML does not list the GPUs"),
    )


def test_gpu_that_is_gone_with_all_others_is_unhealthy_for_the_reason_that_is_known() -> None:
    message = message_for(held(make_gpu(0)), on_node(), "no GPU is bound to the NVIDIA driver")

    assert "does not list that GPU now (no GPU is bound to the NVIDIA driver): delete" in message


def test_held_device_of_a_node_without_driver_is_unhealthy_and_nothing_else_is_told() -> None:
    (found,) = device_health(NODE, None, [held(make_gpu(1))], "the NVIDIA kernel driver is not loaded")

    assert (found.device, found.health) == ("gpu-1", Health.UNHEALTHY)
    assert "but this node has no NVIDIA driver now (the NVIDIA kernel driver is not loaded): delete" in found.message


def test_device_of_two_claims_is_told_once() -> None:
    found = device_health(NODE, on_node(), [held(make_gpu(0), 1), held(make_gpu(0), 2)])

    assert [(each.device, each.health) for each in found] == [("gpu-0", Health.UNHEALTHY)]


def test_name_is_unhealthy_as_long_as_one_claim_holds_the_card_that_had_it() -> None:
    replaced = make_gpu(0, uuid=U2)

    found = device_health(NODE, on_node(replaced), [held(make_gpu(0), 1), held(replaced, 2)])

    assert [(each.device, each.health) for each in found] == [("gpu-0", Health.UNHEALTHY)]


def test_node_without_devices_has_nothing_to_tell() -> None:
    assert device_health(NODE, on_node(), []) == ()
