"""One run: a cluster, the scenes one after the other, and the cards' settings compared before and after."""

import tarfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hack.cluster.cluster import Cluster
from hack.cluster.errors import ClusterError
from hack.cluster.plan import Plan
from hack.hardware import figures, layout, scenes, smi, unpack
from hack.hardware.errors import HardwareError
from hack.hardware.findings import Findings
from hack.hardware.stage import Setting, Stage

Scene = Callable[[Stage, Findings], None]

SCENES: Final[Mapping[str, Sequence[Scene]]] = {
    "f": (figures.starts, figures.prepares),
    "b": (scenes.without_claim, scenes.two_cards),
    "a": (scenes.sharing,),
    "c": (scenes.file_variants,),
}
"""Letters of the scenes, in the order in which they play; d and e belong to a."""


@dataclass(frozen=True, slots=True)
class Place:
    """unpacked: a pack's content. directory: of the cluster. logs: archive for the logs of all components."""

    unpacked: Path
    directory: Path
    logs: Path


def run(setting: Setting, place: Place, letters: str, say: Callable[[str], None]) -> tuple[Findings, list[str]]:
    """Play; what was found, and the UUIDs of the cards. Raises ClusterError when there is no cluster to play in."""
    findings = Findings()
    copied = unpack.install(place.unpacked / layout.SYSTEM)
    if copied:
        say(f"copied {', '.join(copied)}")
    before = {} if setting.simulated else smi.read_settings()
    try:
        _play(setting, place, letters, findings, say)
    finally:
        if not setting.simulated:
            _compare(before, findings)
    return findings, list(before)


def _play(setting: Setting, place: Place, letters: str, findings: Findings, say: Callable[[str], None]) -> None:
    began = time.monotonic()
    with Cluster(place.directory, Plan(), say, place.unpacked / layout.PROGRAMS) as cluster, _kept(cluster, place):
        say(f"cluster up after {time.monotonic() - began:.1f} s")
        stage = Stage(cluster, setting)
        stage.prepare()
        stage.start_driver()
        findings.facts["machine"] = stage.machine()
        if not setting.simulated:
            head = smi.read_report().head
            findings.facts["machine"] |= {"driver": head["Driver Version"], "cuda": head["CUDA Version"]}
        for letter, parts in SCENES.items():
            for scene in parts if letter in letters else ():
                _scene(letter, scene, stage, findings, say)
        stage.end_driver()


@contextmanager
def _kept(cluster: Cluster, place: Place) -> Iterator[None]:
    """Pack the logs however it ends: the cluster's folder goes with it."""
    try:
        yield
    finally:
        with tarfile.open(place.logs, "w:gz") as archive:
            archive.add(cluster.logs, "logs")


def _scene(letter: str, scene: Scene, stage: Stage, findings: Findings, say: Callable[[str], None]) -> None:
    """A scene that breaks is a check that does not hold; the next ones play on."""
    began = time.monotonic()
    parts: tuple[Callable[[], None], ...] = (lambda: scene(stage, findings), stage.clear)
    for part in parts:
        try:
            part()
        except (HardwareError, ClusterError) as error:
            findings.check(letter, f"{scene.__name__} plays to its end", False, error)
        except Exception as error:  # noqa: BLE001 - what was found so far is not to be lost
            findings.check(letter, f"{scene.__name__} plays to its end", False, repr(error))
            traceback.print_exc()
    say(f"{letter}: {scene.__name__}, {time.monotonic() - began:.1f} s")


def _compare(before: Mapping[str, Mapping[str, str]], findings: Findings) -> None:
    after = smi.read_settings()
    changed = smi.changed(before, after)
    count = sum(map(len, before.values()))
    findings.check(
        "all", f"{count} settings of {len(before)} cards are what they were", not changed, "; ".join(changed)
    )
    findings.facts["settings"] = {"before": before, "changed": changed}
