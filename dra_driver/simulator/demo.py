"""Plays the demo: a cluster in a temporary directory, the driver as a process, scene after scene.

What a scene is made of is in ``scenes``; the command prints what comes out of here.
"""

import shutil
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

from dra_driver.devices.simulated import SimulatedNode
from dra_driver.model.devices import Gpu
from dra_driver.model.errors import DriverError, SettingError
from dra_driver.simulator.cluster import SimulatedCluster
from dra_driver.simulator.scenes import SCENES
from dra_driver.simulator.stage import GATES_ON, Scene, Stage

GPUS_NEEDED = 2

_MAX_SOCKET_PATH = 107
_LONGEST_SOCKET = "/plugins/gpu.nvidia.com/serialize-and-more.sock"


def play(root: Path, simulated_node: str, seconds: float) -> Generator[Scene, None, None]:
    """Play all scenes, giving each as it ends.

    root: an empty directory, such as ``directory`` gives. simulated_node: a scenario with two full GPUs or
    more. seconds: for everything together. Raises SettingError at once for a scenario that does not serve. What
    was started is ended in any case, also when the caller closes the generator half-way.
    """
    check_scenario(simulated_node)
    return _play(root, simulated_node, seconds)


def _play(root: Path, simulated_node: str, seconds: float) -> Generator[Scene, None, None]:
    with SimulatedCluster(root, simulated_node=simulated_node) as cluster:
        stage = Stage(cluster, seconds)
        broken = _tidy(stage)
        for act in SCENES:
            scene = act.scene()
            if broken:
                scene.error = f"not played: {broken}"
                yield scene
                continue
            try:
                act.play(stage, scene)
            except (DriverError, OSError) as error:
                scene.error = str(error)
                broken = _tidy(stage)
            yield scene


def check_scenario(simulated_node: str) -> None:
    """Raises SettingError unless the scenario has enough full GPUs for all scenes."""
    source = SimulatedNode.load(simulated_node).source()
    try:
        found = sum(isinstance(device, Gpu) for device in source.scan().devices.values())
    finally:
        source.close()
    if found < GPUS_NEEDED:
        raise SettingError(
            f"--simulated-node {simulated_node} offers {found} full GPUs: the demo needs {GPUS_NEEDED} or more"
        )


@contextmanager
def directory(keep: bool) -> Iterator[Path]:
    """A temporary directory whose path leaves room for the name of a socket; removed at the end."""
    parent = tempfile.gettempdir()
    if len(f"{parent}/dra-demo-12345678{_LONGEST_SOCKET}") > _MAX_SOCKET_PATH:
        parent = "/tmp"  # noqa: S108 - mkdtemp makes a directory that only this user can enter
    root = Path(tempfile.mkdtemp(prefix="dra-demo-", dir=parent))
    try:
        yield root
    finally:
        if not keep:
            shutil.rmtree(root, ignore_errors=True)


def _tidy(stage: Stage) -> str:
    """Make room for the next scene; why that was not possible, '' when it was."""
    try:
        stage.restart_driver(GATES_ON)
        stage.clear()
    except (DriverError, OSError) as error:
        return str(error)
    return ""
