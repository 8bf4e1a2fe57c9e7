"""``dra-driver explain`` says of each claim what the real scheduler then does, and what it says is true."""

import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Final

import pytest

from dra_driver.cluster.connection import connect
from dra_driver.explain.answers import answer
from dra_driver.explain.questions import questions
from dra_driver.explain.sources import from_cluster
from dra_driver.scheduling.cel import Cel
from hack.cluster.cluster import Cluster
from hack.cluster.driver import environment
from tests.e2e import asked_claims
from tests.e2e.manifests import Json, named, pod
from tests.e2e.paper_node import NAME, PaperNode, on_paper
from tests.e2e.scheduler import several_devices
from tests.e2e.waiting import until
from tests.e2e.world import World, in_namespace

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600), several_devices]

CLAIMS: Final = 90


@pytest.fixture
def world(cluster: Cluster) -> Iterator[World]:
    """A namespace of its own."""
    with in_namespace(cluster, "explained") as made:
        yield made


@pytest.fixture
def paper(cluster: Cluster, world: World) -> Iterator[PaperNode]:
    """A node that offers the devices the claims ask for."""
    with on_paper(cluster, world, *asked_claims.classes(), *asked_claims.slices(NAME)) as made:
        yield made


def condition(world: World, name: str) -> Json | None:
    """What the scheduler decided about a pod."""
    conditions = world.get("Pod", name).get("status", {}).get("conditions", ())
    return next((each for each in conditions if each["type"] == "PodScheduled"), None)


def placed(world: World, name: str, expected: bool) -> bool:
    """Whether a pod is placed, once that is so or the scheduler has said that it is not.

    A pod that should be placed and is not gets another chance: see ``looking_again``.
    """

    def decided() -> str:
        found = condition(world, name)
        said = found["status"] if found else ""
        return "" if expected and said == "False" else said

    try:
        return until(decided, f"the scheduler to decide about {name}", 20 if expected else 60) == "True"
    except AssertionError:
        return False


def test_what_is_said_of_claims_is_what_the_scheduler_does(cluster: Cluster, world: World, paper: PaperNode) -> None:
    connection = connect(str(cluster.files.kubeconfig), "explain-test")
    compiler = Cel().compile_selector
    chance = random.Random(7)
    wrong: list[str] = []
    seen: Counter[str] = Counter()
    for wish in asked_claims.claims(CLAIMS, seed=36):
        name = wish["metadata"]["name"]
        world.apply(wish)
        state = from_cluster(connection)
        (question,) = questions(state, "ResourceClaim", name, world.namespace)
        said = answer(state, question, compiler, NAME)
        paper.apply([pod(name, gpu=named(name))])
        done = placed(world, name, said.fits)
        seen["placed" if done else "waiting"] += 1
        if done != said.fits:
            found = condition(world, name)
            problems = [*said.problems, *(node.problem for node in said.nodes)]
            wrong.append(f"{json.dumps(wish['spec'])}: explain says {said.fits} {problems}, the scheduler {found}")
        for node in said.nodes:
            for request in node.requests:
                seen.update(device.reason.kind.value for device in request.devices if device.reason)
        if not done or chance.random() < 0.6:
            world.delete("Pod", name, grace_s=0)
            world.delete("ResourceClaim", name)
    assert not wrong, "\n".join(wrong)
    # All kinds of answers came up, so that agreement means something.
    assert min(seen["placed"], seen["waiting"]) >= CLAIMS // 5, seen
    assert {"selector", "taint", "in use", "capacity", "counter"} <= set(seen), seen


def test_command_reads_the_cluster_and_tells_why_a_pod_waits(cluster: Cluster, world: World, paper: PaperNode) -> None:
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 8}}
    world.apply(asked_claims.claim("all-of-them", request))
    paper.apply([pod("greedy", gpu=named("all-of-them"))])
    world.wait_unschedulable("greedy")
    done = run(cluster, world, "pod/greedy", f"--node={NAME}")
    assert done.returncode == 1, done.stderr
    assert "request gpu wants 8 devices, 7 of 8 selected can be had" in done.stdout
    assert "gpu-4: tainted ecc=lost:NoSchedule" in done.stdout
    said = json.loads(run(cluster, world, "claim/all-of-them", "-o", "json", f"--node={NAME}").stdout)
    assert (said["ok"], said["answers"][0]["nodes"][0]["node"]) == (False, NAME)


def run(cluster: Cluster, world: World, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command as a user runs it."""
    command = [sys.executable, "-m", "dra_driver", "explain", "-n", world.namespace]
    command += [f"--kubeconfig={cluster.files.kubeconfig}", *arguments]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, check=False)
