"""The scenes: what pods do on the cards, and what must be so. Each leaves the node without claims and pods."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from hack.hardware import smi, throughput
from hack.hardware.errors import HardwareError
from hack.hardware.findings import Findings
from hack.hardware.manifests import SHARED_BY_TURNS, Json, claim, container, pod
from hack.hardware.pod_images import BARE, KINDS
from hack.hardware.pods import Outcome
from hack.hardware.stage import Stage, Variant

ROUNDS: Final = 4
"""Slots of each kind of work that figures rest on, at least."""

_GPU: Final[Mapping[str, str]] = {"name": "gpu"}
_SECOND_WORK: Final = {"WORK": "compute,copy,compute"}
"""While the first pod waits for short kernels, the second computes."""


def without_claim(stage: Stage, findings: Findings) -> None:
    """b: a pod without a claim, its image asking for all GPUs or not."""
    for kind in (BARE, next(kind for kind in KINDS if kind.asks_for_all)):
        name = f"b-none-{kind.name}"
        stage.pods.apply(pod(name, [container("main", "report", image=kind.image)]))
        outcome = stage.pods.wait_outcome(name)
        seen = outcome.report.get("devices", [outcome.trouble])
        sees_none = not outcome.trouble and outcome.report["count"] == 0 and not seen
        findings.check("b", f"pod without a claim sees no GPU, image {kind.name}", sees_none, seen or "no device file")
        findings.facts.setdefault("without_claim", {})[kind.name] = outcome.report
        stage.pods.delete([name])


def two_cards(stage: Stage, findings: Findings) -> None:
    """b: one claim with two requests, a container for each, and one that has both."""
    if len(stage.devices()) < 2:
        findings.facts["two_cards"] = "one card on this machine"
        return
    containers = [container(side, "report", {**_GPU, "request": side}) for side in ("left", "right")]
    stage.pods.apply(
        claim("b-two", "left", "right"),
        pod("b-each", containers, "b-two"),
        pod("b-both", [container("main", "report", _GPU)], "b-two"),
    )
    seen = {side: stage.pods.wait_outcome("b-each", side) for side in ("left", "right")}
    seen["both"] = stage.pods.wait_outcome("b-both")
    cards = {side: stage.card(device) for side, device in stage.pods.devices("b-two").items()}
    findings.check("b", "two requests are two cards", len(set(cards.values())) == 2, ", ".join(cards.values()))
    for side in ("left", "right"):
        exactly = seen[side].uuids == [cards[side]] and seen[side].computed
        findings.check(
            "b", f"container of request {side} sees and uses its own card alone", exactly, _shown(seen[side])
        )
    both = seen["both"].uuids == sorted(cards.values()) and seen["both"].computed
    findings.check("b", "container of the whole claim sees and uses both", both, _shown(seen["both"]))
    findings.facts["two_cards"] = {side: outcome.report for side, outcome in seen.items()}
    stage.pods.delete(["b-each", "b-both"])
    _apart(stage, findings)
    stage.pods.delete((), ["b-two"])


def _apart(stage: Stage, findings: Findings) -> None:
    """Two pods at the same time, each on a card of its own."""
    pods = {side: f"b-{side}" for side in ("left", "right")}
    work = {"WORK": "compute,copy"}
    for side, name in pods.items():
        measuring = container("main", "measure", {**_GPU, "request": side}, env=work)
        stage.pods.apply(pod(name, [measuring], "b-two"))
    for name in pods.values():
        stage.pods.wait_lines(name, _has_rounds)
    both = throughput.together(*(stage.pods.lines(name) for name in pods.values()))
    findings.facts["apart"] = {
        kind: {
            side: throughput.document_of(throughput.rate(lines, kind)) for side, lines in zip(pods, both, strict=True)
        }
        for kind in ("compute", "copy")
    }
    stage.pods.delete(pods.values())


def sharing(stage: Stage, findings: Findings) -> None:
    """a, d, e: one pod alone, two sharing, the driver killed and started again under them."""
    stage.pods.apply(
        claim("shared", interval=SHARED_BY_TURNS), pod("one", [container("main", "measure", _GPU)], "shared")
    )
    stage.pods.wait_lines("one", _has_rounds)
    joined = time.time()
    stage.pods.apply(pod("two", [container("main", "measure", _GPU, env=_SECOND_WORK)], "shared"))
    stage.pods.wait_lines("two", _has_rounds)
    _both_listed(stage, findings)
    # Both pods end a slot at the same time, and tell of it one after the other.
    first, second = stage.pods.lines("one"), stage.pods.lines("two")
    _same_card(stage, findings, first[0], second[0])
    _figures(stage, findings, joined, first, second)
    _killed_under(stage, findings)
    stage.pods.delete(["one", "two"], ["shared"])
    left = stage.left_behind()
    findings.check("e", "after the pods nothing is left on the node", not left, left or "nothing")


def file_variants(stage: Stage, findings: Findings) -> None:
    """c: each way to hand over the driver's files, for images of each kind."""
    for variant in stage.variants():
        try:
            stage.start_driver(*variant.flags)
        except Exception as error:  # noqa: BLE001 - a way that does not start must not hide the others
            findings.check("c", f"{variant.name}: the driver starts", False, error)
            continue
        _variant(stage, findings, variant)


def _variant(stage: Stage, findings: Findings, variant: Variant) -> None:
    pods = {kind: f"c-{kind.name}" for kind in KINDS}
    stage.pods.apply(
        claim("files"),
        *(pod(name, [container("main", "report", _GPU, image=kind.image)], "files") for kind, name in pods.items()),
    )
    try:
        outcomes = {kind: stage.pods.wait_outcome(name) for kind, name in pods.items()}
        card = stage.card(stage.pods.devices("files")["gpu"])
        seen: dict[str, Any] = {}
        for kind, outcome in outcomes.items():
            right = outcome.uuids == [card] and outcome.computed
            seen[kind.name] = outcome.report or {"trouble": outcome.trouble}
            if right or variant.bare_images or kind.files:
                findings.check(
                    "c", f"{variant.name}, image {kind.name}: its card, and right results", right, _shown(outcome)
                )
        findings.facts.setdefault("variants", {})[variant.name] = seen
        findings.facts.setdefault("cdi", {})[variant.name] = stage.cdi_text()
    except HardwareError as error:
        findings.check("c", f"{variant.name}: pods run", False, error)
    stage.pods.delete(pods.values(), ["files"])


def _both_listed(stage: Stage, findings: Findings) -> None:
    pids = {name: stage.processes(name) for name in ("one", "two")}
    findings.check("a", "each pod is one process on the host", all(len(each) == 1 for each in pids.values()), pids)
    if stage.setting.simulated:
        return
    listed = smi.read_processes().get(stage.card(stage.pods.devices("shared")["gpu"]), [])
    both = all(set(each) & set(listed) for each in pids.values())
    findings.check("a", "NVML on the host lists the processes of both pods", both, f"{len(listed)} on the card")
    findings.facts["listed"] = {name: len(set(each) & set(listed)) for name, each in pids.items()}


def _same_card(stage: Stage, findings: Findings, first: Json, second: Json) -> None:
    card = stage.card(stage.pods.devices("shared")["gpu"])
    outcomes = [Outcome(first), Outcome(second)]
    same = all(each.uuids == [card] and each.computed for each in outcomes)
    findings.check("a", "both pods see the claim's card, and no other", same, " and ".join(map(_shown, outcomes)))
    findings.facts["shared"] = {"one": first, "two": second}


def _figures(stage: Stage, findings: Findings, joined: float, first: Sequence[Json], second: Sequence[Json]) -> None:
    alone = throughput.before(first, joined, stage.setting.slot_s)
    both = throughput.together(first, second)
    slots = len({line["slot"] for line in both[0]})
    findings.check("a", "both compute in the same slots of time", slots >= 2 * ROUNDS, f"{slots} slots")
    figures = [throughput.shares(alone, *both, kind=kind) for kind in ("compute", "copy")]
    found = {each.kind: throughput.document(each) for each in figures}
    # Slots in which the first pod launched short kernels, while the second computed.
    found["launch"] = {
        "alone": throughput.document_of(throughput.rate(alone, "launch")),
        "first": throughput.document_of(throughput.rate(both[0], "launch")),
    }
    findings.facts["throughput"] = found


def _killed_under(stage: Stage, findings: Findings) -> None:
    """The driver is killed; a slot later it is started again, and a third pod joins."""
    if stage.driver is None:
        return
    before = stage.pods.get("one")["status"]["containerStatuses"][0]["containerID"]
    stage.driver.kill()
    killed = int(time.time() // stage.setting.slot_s)
    for name in ("one", "two"):
        stage.pods.wait_lines(name, _has_slot(killed + 1))
    stage.driver.start()
    stage.wait_driver()
    started = int(time.time() // stage.setting.slot_s)
    stage.pods.apply(pod("three", [container("main", "report", _GPU)], "shared"))
    third = stage.pods.wait_outcome("three")
    gone_on = [stage.pods.wait_lines(name, _has_slot(started + 1)) for name in ("one", "two")]
    slots = [{line["slot"] for line in lines if line["kind"] in throughput.UNITS} for lines in gone_on]
    whole = all(set(range(killed, started + 2)) <= each for each in slots)
    after = stage.pods.get("one")["status"]["containerStatuses"][0]["containerID"]
    findings.check(
        "e",
        "driver killed and started again: both pods compute in each slot",
        whole and before == after,
        f"{started + 2 - killed} slots, same container",
    )
    card = stage.card(stage.pods.devices("shared")["gpu"])
    joins = third.uuids == [card] and third.computed
    findings.check("e", "a pod that comes after the restart joins the claim's card", joins, _shown(third))
    stage.pods.delete(["three"])


def _has_rounds(lines: Sequence[Json]) -> bool:
    """Enough whole slots of all that a pod does, whatever the slot that it began in."""
    found = throughput.kinds(lines)
    return {"compute", "copy"} <= found.keys() and min(found.values()) > ROUNDS


def _has_slot(slot: int) -> Callable[[Sequence[Json]], bool]:
    return lambda lines: bool(lines) and lines[-1].get("slot", 0) >= slot


def _shown(outcome: Outcome) -> str:
    if outcome.trouble:
        return outcome.trouble[:300]
    return outcome.report.get("error") or ", ".join(outcome.uuids) or "no card"
