"""Starts after reboots, damage and lost state; the sweep of forgotten claims."""

from dataclasses import replace

import pytest

from dra_driver.claims.recovery import Rebuild, check_boot, open_store
from dra_driver.claims.sweep import Sweep
from dra_driver.model.devices import MemoryLimits
from dra_driver.model.errors import ApiUnreachable, CdiError, ControlTimeout, DeviceBusy, DriverNotReady, StateError
from dra_driver.model.records import ClaimState
from dra_driver.sharing.memory_limits import LimitTerms, ShareMemory
from tests.builders import NODE, claim_ref, config_entry, gpu_uuid, make_inventory, result, time_slicing
from tests.fakes.node import FakeEvents

LONG = config_entry(time_slicing("Long"))
U0 = gpu_uuid(0)


@pytest.fixture
def boot_id(tmp_path):
    path = tmp_path / "boot_id"
    path.write_text("boot-1\n")
    return path


def recovery(node):
    return Rebuild(node.edges, NODE, node.strategies, node.orphans.adopt, node.orphans.discard)


def rebuild(node):
    recovery(node).run(node.inventory.devices)


def sweep(node):
    return Sweep(node.edges, NODE, node.lifecycle.unprepare, recovery(node).run)


def test_a_reboot_forgets_claims_files_and_slices(node, boot_id):
    check_boot(node.store, node.cdi, boot_id)
    claim = node.claim(1, [result()], LONG)
    node.prepare(claim)
    boot_id.write_text("boot-2\n")
    node.restart()
    check_boot(node.store, node.cdi, boot_id)
    assert (list(node.store.records()), node.cdi.files, node.store.time_slice(U0, "epoch-1")) == (
        [],
        {},
        None,
    )
    node.prepare(claim)
    assert node.control.slices_set == [3, 3]


def test_without_a_stored_boot_id_the_current_one_is_adopted(node, boot_id):
    node.prepare(node.claim(1, [result()]))
    check_boot(node.store, node.cdi, boot_id)
    assert (node.store.fact("boot_id"), len(list(node.store.records()))) == ("boot-1", 1)


def test_an_unreadable_boot_id_keeps_the_claims(node, tmp_path, boot_id):
    check_boot(node.store, node.cdi, boot_id)
    node.prepare(node.claim(1, [result()]))
    check_boot(node.store, node.cdi, tmp_path / "missing")
    assert len(list(node.store.records())) == 1


def damage(path, how):
    content = path.read_bytes()
    half = len(content) // 2
    damaged = {
        "flipped": content.replace(b'"pool":"node-a"', b'"pool":"mode-a"'),
        "half": content[:half],
        "empty": b"",
        "list": b"[]",
        "old json": b'{"<uid>": [{"device": "gpu-0"}]}',
    }[how]
    assert damaged != content
    path.write_bytes(damaged)


@pytest.mark.parametrize("how", ["flipped", "half", "list", "old json"])
def test_a_damaged_database_is_set_aside_with_an_event_and_rebuilt(node, how):
    claim = node.claim(1, [result()], LONG)
    node.prepare(claim)
    path = node.directory / "state.db"
    node.stop()
    damage(path, how)
    kept = path.read_bytes()
    events = FakeEvents()
    open_store(path, events).close()
    (aside,) = node.directory.glob("state.db.damaged-*")
    assert aside.read_bytes() == kept
    assert [(kind, reason) for kind, reason, _ in events.events] == [("Warning", "StateDatabaseDamaged")]
    node.start()
    rebuild(node)
    (record,) = node.store.records()
    assert (record.claim, record.state) == (claim, ClaimState.COMPLETED)
    with pytest.raises(DeviceBusy, match="claim-1"):
        node.prepare(node.claim(2, [result()]))
    node.lifecycle.unprepare(claim)
    assert node.control.slices_set == [3, 0]


def test_an_emptied_database_is_rebuilt_from_files_and_claims(node):
    claim = node.claim(1, [result()], LONG)
    before = node.lifecycle.prepare(claim)
    path = node.directory / "state.db"
    node.stop()
    damage(path, "empty")
    open_store(path, FakeEvents()).close()
    node.start()
    rebuild(node)
    assert node.lifecycle.prepare(claim) == before


def test_a_lost_state_with_the_api_server_down_still_holds_the_devices(node):
    claim = node.claim(1, [result()])
    node.prepare(claim)
    node.store.remove(claim.uid)
    node.api.down = True
    rebuild(node)
    node.api.down = False
    with pytest.raises(DeviceBusy):
        node.prepare(node.claim(2, [result()]))
    assert node.prepare(claim) == [("gpu-0", U0)]


@pytest.mark.parametrize("share", [None, "00000000-0000-4000-a000-000000000001"], ids=["whole", "by share"])
def test_a_lost_claim_whose_gate_is_off_now_still_holds_its_device(node, share):
    claim = node.claim(1, [result(shareID=share)], LONG)
    node.prepare(claim)
    node.store.remove(claim.uid)
    node.strategies = {}
    rebuild(node)
    assert [(d.device, d.share_id) for d in node.store.get(claim.uid).devices] == [("gpu-0", share)]


def share(number, request, device="gpu-0", **more):
    return result(device, request, shareID=f"share-{number}", consumedCapacity={"shares": str(number)}, **more)


def test_a_lost_claim_whose_gate_is_off_now_holds_each_device_as_it_did(node):
    shares = [share(1, "a"), share(2, "b"), share(3, "look", "gpu-1", adminAccess=True)]
    claim = node.claim(1, shares, config_entry(time_slicing("Long"), "a", "b"))
    before = node.lifecycle.prepare(claim)
    node.store.remove(claim.uid)
    node.strategies = {}
    rebuild(node)
    after = node.store.get(claim.uid).devices
    assert [(d.device, d.share_id, d.admin_access, d.consumed_capacity) for d in after] == [
        (d.device, d.share_id, d.admin_access, d.consumed_capacity) for d in before
    ]


def test_a_lost_claim_that_demanded_enforced_limits_is_taken_over_where_there_are_none_any_more(node):
    claim = node.claim(1, [share(1, "gpu")], LONG)
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": {"selectors": [{"cel": {"expression": ENFORCED}}]}}]}}
    node.api.objects[claim.uid]["spec"] = spec
    node.inventory = limited(MemoryLimits.ENFORCED)
    node.prepare(claim)
    node.store.remove(claim.uid)
    node.inventory = limited(MemoryLimits.OBSERVED)
    rebuild(node)
    assert node.store.get(claim.uid).devices[0].time_slice == 3


ENFORCED = 'device.attributes["gpu.nvidia.com"].memoryLimits == "enforced"'


def limited(limits):
    found = make_inventory()
    return replace(found, gpus=tuple(replace(gpu, memory_limits=limits) for gpu in found.gpus))


def not_decided(device):
    raise DriverNotReady("how the GPUs of this node are shared is not decided yet")


def test_a_lost_claim_keeps_its_slice_while_its_even_part_of_memory_cannot_be_told(node):
    claim = node.claim(1, [share(1, "gpu")], LONG)
    node.prepare(claim)
    node.store.remove(claim.uid)
    node.limit_terms = LimitTerms(ShareMemory.EVEN, not_decided)
    node.restart()
    rebuild(node)
    (device,) = node.store.get(claim.uid).devices
    assert (device.time_slice, device.sharing != "", device.memory_budget) == (3, True, None)
    node.lifecycle.unprepare(claim)
    assert node.control.slices_set == [3, 0]


@pytest.mark.parametrize("gone", ["deleted", "deallocated", "elsewhere"])
def test_a_file_whose_claim_is_not_allocated_here_is_removed(node, gone):
    claim = node.claim(1, [result()])
    node.prepare(claim)
    node.store.remove(claim.uid)
    if gone == "deleted":
        del node.api.objects[claim.uid]
    elif gone == "deallocated":
        node.api.objects[claim.uid]["status"] = {}
    else:
        node.claim(1, [result(pool="node-b")])
    rebuild(node)
    assert (list(node.store.records()), node.cdi.files) == ([], {})


def test_files_of_recorded_claims_are_left_alone(node):
    claim = node.claim(1, [result()])
    node.prepare(claim)
    node.api.objects.clear()
    rebuild(node)
    assert claim.uid in node.cdi.files


def test_a_read_only_directory_is_an_error_that_names_it(tmp_path):
    path = tmp_path / "missing" / "state.db"
    with pytest.raises(StateError, match=str(path)):
        open_store(path, FakeEvents())


def test_the_sweep_takes_back_started_claims_whose_object_is_gone(node):
    node.control.fail_set_time_slice = lambda *_: ControlTimeout("no answer")
    claims = [node.claim(number, [result(f"gpu-{number}")], LONG) for number in range(2)]
    for claim in claims:
        with pytest.raises(ControlTimeout):
            node.prepare(claim)
    node.control.fail_set_time_slice = lambda *_: None
    del node.api.objects[claims[0].uid]
    sweep(node).run()
    assert [record.claim for record in node.store.records()] == [claims[1]]


def test_the_sweep_takes_back_completed_claims_the_second_time_only(node):
    claim = node.claim(1, [result()])
    node.prepare(claim)
    node.api.objects.clear()
    sweeper = sweep(node)
    sweeper.run()
    assert node.store.get(claim.uid) is not None
    sweeper.run()
    assert node.store.get(claim.uid) is None


def test_the_sweep_leaves_claims_alone_while_the_api_server_is_down(node):
    claim = node.claim(1, [result()])
    node.prepare(claim)
    node.api.down = True
    sweeper = sweep(node)
    for _ in range(2):
        with pytest.raises(ApiUnreachable):
            sweeper.run()
    assert node.store.get(claim.uid) is not None


def test_the_sweep_finds_claims_known_by_uid_only(node):
    claim = node.claim(1, [result()])
    node.prepare(claim)
    node.store.remove(claim.uid)
    node.api.down = True
    rebuild(node)
    node.api.down = False
    sweeper = sweep(node)
    sweeper.run()
    sweeper.run()
    assert node.store.get(claim.uid) is not None
    node.api.objects.clear()
    sweeper.run()
    sweeper.run()
    assert node.store.get(claim.uid) is None
    assert claim_ref(1).uid not in node.cdi.files


def test_the_sweep_learns_what_a_claim_known_by_uid_only_has(node):
    claim = node.claim(1, [share(1, "gpu")], LONG)
    before = node.lifecycle.prepare(claim)
    node.store.remove(claim.uid)
    node.api.down = True
    rebuild(node)
    rebuild(node)
    assert node.store.get(claim.uid).claim.name == ""
    node.api.down = False
    sweep(node).run()
    assert (node.store.get(claim.uid).claim, node.store.get(claim.uid).devices) == (claim, before)
    node.prepare(node.claim(2, [share(2, "gpu")], LONG))


def test_the_sweep_goes_on_while_there_is_no_inventory_to_learn_with(node):
    lost, gone = node.claim(1, [result()]), node.claim(2, [result("gpu-1")])
    for claim in (lost, gone):
        node.prepare(claim)
    node.store.remove(lost.uid)
    node.api.down = True
    rebuild(node)
    node.api.down = False
    del node.api.objects[gone.uid]
    node.edges = replace(node.edges, inventory=not_ready)
    sweeper = sweep(node)
    sweeper.run()
    sweeper.run()
    assert [record.claim.uid for record in node.store.records()] == [lost.uid]


def not_ready():
    raise DriverNotReady("the GPUs of this node are not known yet")


@pytest.mark.parametrize("how", ["deallocated", "another device", "another node"])
def test_the_sweep_takes_back_claims_whose_allocation_is_not_this_any_more(node, how):
    claim = node.claim(1, [result()])
    node.prepare(claim)
    if how == "deallocated":
        node.api.objects[claim.uid]["status"] = {}
    else:
        node.claim(1, [result("gpu-1") if how == "another device" else result(pool="node-b")])
    sweeper = sweep(node)
    sweeper.run()
    sweeper.run()
    assert list(node.store.records()) == []


def test_recovery_goes_on_after_a_file_that_cannot_be_removed(node, monkeypatch):
    lost = node.claim(1, [result()])
    node.prepare(lost)
    node.store.remove(lost.uid)
    node.cdi.files = {"a-stranger": ("gpu-1",), **node.cdi.files}
    remove = node.cdi.remove

    def failing(uid):
        if uid == "a-stranger":
            raise CdiError("is a directory")
        remove(uid)

    monkeypatch.setattr(node.cdi, "remove", failing)
    rebuild(node)
    assert [record.claim for record in node.store.records()] == [lost]
