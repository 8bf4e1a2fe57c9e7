import copy
from collections.abc import Sequence
from typing import Any

import pytest

from dra_driver.ports import Json
from dra_driver.slices.build import PoolSlice, slice_objects
from dra_driver.slices.reconcile import Answers, Changes, Pool, dropped_gates, plan


def device(name: str, **more: Any) -> Json:
    return {
        "name": name,
        "attributes": {"type": {"string": "gpu"}},
        "capacity": {"memory": {"value": "143771Mi"}},
        **more,
    }


def pool(*slices: Sequence[Json], uid: str = "node-uid-1") -> Pool:
    """The wanted pool: one sequence of devices a slice."""
    return Pool(
        node_name="node-1",
        node_uid=uid,
        slices=tuple(PoolSlice(devices=tuple(devices)) for devices in slices),
    )


def stored(wanted: Pool, generation: int = 1) -> list[Json]:
    """The pool's slices as an API server holds them."""
    objects = copy.deepcopy(slice_objects(wanted.slices, wanted.node_name, wanted.node_uid, generation))
    for number, item in enumerate(objects):
        metadata = item["metadata"]
        metadata |= {
            "name": f"{metadata['generateName']}abcd{number}",
            "uid": f"slice-uid-{number}",
            "resourceVersion": str(number + 10),
            "managedFields": [{"manager": "dra-driver"}],
        }
    return objects


def changes(wanted: Pool, there: list[Json]) -> Changes:
    return plan(wanted, there, Answers())


ONE = pool([device("gpu-0"), device("gpu-1")])
TWO = pool([device("gpu-0")], [device("gpu-1")])
THREE = pool([device("gpu-0")], [device("gpu-1")], [device("gpu-2")])


def test_first_publication_creates_generation_1() -> None:
    found = changes(TWO, [])
    assert [item["spec"]["pool"]["generation"] for item in found.create] == [1, 1]


@pytest.mark.parametrize("wanted", [ONE, TWO, pool([])], ids=["one", "two", "empty"])
def test_nothing_is_written_when_all_is_there(wanted: Pool) -> None:
    assert not changes(wanted, stored(wanted, generation=7))


def test_slice_without_devices_field_equals_an_empty_slice() -> None:
    there = stored(pool([]))
    del there[0]["spec"]["devices"]
    assert not changes(pool([]), there)


def test_quantities_are_compared_by_value() -> None:
    there = stored(ONE)
    there[0]["spec"]["devices"][0]["capacity"]["memory"]["value"] = str(143771 * 2**20)
    assert not changes(ONE, there)


def test_other_text_is_not_compared_as_quantity() -> None:
    wanted = pool([device("gpu-0", attributes={"productName": {"string": "1k"}})])
    there = stored(wanted)
    there[0]["spec"]["devices"][0]["attributes"]["productName"]["string"] = "1000"
    assert len(changes(wanted, there).replace) == 1


def test_order_of_devices_matters() -> None:
    there = stored(ONE)
    there[0]["spec"]["devices"].reverse()
    assert len(changes(ONE, there).replace) == 1


def test_one_changed_slice_is_replaced_in_its_generation() -> None:
    there = stored(TWO, generation=4)
    there[1]["spec"]["devices"] = [device("gpu-9")]
    found = changes(TWO, there)
    assert [item["metadata"]["name"] for item in found.replace] == [there[1]["metadata"]["name"]]
    assert found.generation == 4


def test_two_changed_slices_raise_the_generation_of_all() -> None:
    there = stored(THREE, generation=4)
    there[0]["spec"]["devices"] = there[1]["spec"]["devices"] = [device("gpu-9")]
    found = changes(THREE, there)
    assert [item["spec"]["pool"]["generation"] for item in found.replace] == [5, 5, 5]


def test_new_slice_raises_the_generation_of_all() -> None:
    found = changes(TWO, stored(ONE, generation=4))
    assert [item["spec"]["pool"]["generation"] for item in [*found.replace, *found.create]] == [5, 5]


def test_slice_too_many_is_deleted_and_the_only_one_left_keeps_its_generation() -> None:
    there = stored(TWO, generation=4)
    found = changes(pool([device("gpu-0")]), there)
    assert [item["metadata"]["name"] for item in found.delete] == [there[1]["metadata"]["name"]]
    assert [item["spec"]["pool"]["generation"] for item in found.replace] == [4]
    assert found.replace[0]["spec"]["pool"]["resourceSliceCount"] == 1


def test_slice_too_many_raises_the_generation_when_more_than_one_is_left() -> None:
    found = changes(TWO, stored(THREE, generation=4))
    assert [item["spec"]["pool"]["generation"] for item in found.replace] == [5, 5]


def test_slices_of_an_older_generation_are_deleted() -> None:
    old, new = stored(ONE, generation=3)[0], stored(ONE, generation=4)[0]
    old["metadata"]["name"] += "old"
    found = changes(ONE, [old, new])
    assert [item["metadata"]["name"] for item in found.delete] == [old["metadata"]["name"]]
    assert not found.replace
    assert not found.create


@pytest.mark.parametrize(
    "name", ["gpu.nvidia.com-node-1-abcde", "0000-gpu.nvidia.com-node-1-abcde", "fffff-gpu.nvidia.com-x"]
)
def test_slice_without_usable_index_is_deleted_and_made_anew(name: str) -> None:
    there = stored(ONE, generation=2)
    there[0]["metadata"]["name"] = name
    found = changes(ONE, there)
    assert (len(found.delete), len(found.create), found.generation) == (1, 1, 3)


def test_second_slice_of_an_index_is_deleted() -> None:
    there = stored(ONE) + stored(ONE)
    there[1]["metadata"]["name"] = "00000-gpu.nvidia.com-node-1-zzzzz"
    assert [item["metadata"]["name"] for item in changes(ONE, there).delete] == [there[1]["metadata"]["name"]]


def test_slice_of_another_pool_is_deleted() -> None:
    other = stored(ONE)[0]
    other["metadata"]["name"] += "x"
    other["spec"]["pool"] = {"name": "other", "generation": 99, "resourceSliceCount": 1}
    found = changes(ONE, [*stored(ONE), other])
    assert [item["spec"]["pool"]["name"] for item in found.delete] == ["other"]
    assert not found.replace


def test_generation_never_goes_below_what_was_written() -> None:
    assert plan(ONE, [], Answers(), least_generation=8).generation == 9


def test_generation_set_back_by_hand_is_restored() -> None:
    (restored,) = plan(ONE, stored(ONE, generation=2), Answers(), least_generation=8).replace
    assert restored["spec"]["pool"]["generation"] == 8


@pytest.mark.parametrize("owners", [[], None, [{"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "old"}]])
def test_owner_is_restored(owners: object) -> None:
    there = stored(ONE)
    there[0]["metadata"]["ownerReferences"] = owners
    (restored,) = changes(ONE, there).replace
    assert restored["metadata"]["ownerReferences"][0]["uid"] == "node-uid-1"


def test_replacement_keeps_identity_and_labels_of_what_is_stored() -> None:
    there = stored(ONE)
    there[0]["spec"]["devices"] = []
    there[0]["metadata"]["labels"] = {"team": "a"}
    metadata = changes(ONE, there).replace[0]["metadata"]
    assert metadata == {name: value for name, value in there[0]["metadata"].items() if name != "managedFields"}


TAINT = {"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoSchedule"}
TIME = {"timeAdded": "2026-08-07T10:00:00Z"}


def test_time_that_the_server_adds_to_a_taint_is_no_change() -> None:
    wanted = pool([device("gpu-0", taints=[TAINT])])
    assert not changes(wanted, stored(pool([device("gpu-0", taints=[TAINT | TIME])])))


def test_taint_set_by_hand_is_a_change() -> None:
    assert changes(pool([device("gpu-0")]), stored(pool([device("gpu-0", taints=[TAINT])])))


def test_time_of_an_unchanged_taint_survives_a_replacement() -> None:
    wanted = pool([device("gpu-0", taints=[TAINT]), device("gpu-1")])
    (written,) = changes(wanted, stored(pool([device("gpu-0", taints=[TAINT | TIME])]))).replace
    assert written["spec"]["devices"][0]["taints"] == [TAINT | TIME]


def test_planning_changes_none_of_its_inputs() -> None:
    wanted = pool([device("gpu-0", taints=[TAINT])])
    there = stored(pool([device("gpu-0", taints=[TAINT | TIME]), device("gpu-1")]))
    before = copy.deepcopy((wanted, there))
    changes(wanted, there)
    assert (wanted, there) == before


def test_what_the_server_made_of_our_slice_is_not_written_again() -> None:
    wanted = pool([device("gpu-0", taints=[TAINT])])
    there = stored(pool([device("gpu-0")]))
    answers = Answers()
    answers.keep(stored(wanted)[0], there[0])
    assert not plan(wanted, there, answers)


def test_later_change_to_what_the_server_made_of_our_slice_is_undone() -> None:
    wanted = pool([device("gpu-0", taints=[TAINT])])
    answers = Answers()
    answers.keep(stored(wanted)[0], stored(pool([device("gpu-0")]))[0])
    assert plan(wanted, stored(pool([device("gpu-9")])), answers)


def test_answer_is_forgotten_with_its_slice() -> None:
    wanted = pool([device("gpu-0", taints=[TAINT])])
    there = stored(pool([device("gpu-0")]))
    answers = Answers()
    answers.keep(stored(wanted)[0], there[0])
    answers.retain([])
    assert plan(wanted, there, answers)


def test_dropped_fields_are_named_with_their_feature_gate() -> None:
    wanted = stored(pool([device("gpu-0", taints=[TAINT], allowMultipleAllocations=True)]))[0]
    assert dropped_gates(wanted, stored(pool([device("gpu-0")]))[0]) == {
        "taints": "DRADeviceTaints",
        "allowMultipleAllocations": "DRAConsumableCapacity",
    }
