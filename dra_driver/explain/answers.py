"""The explanation of one claim: on which nodes it fits, and for each request and device what stands in the way."""

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches

from dra_driver.explain import nodes
from dra_driver.explain.questions import Question
from dra_driver.explain.reasons import Reason, failed, reason
from dra_driver.explain.state import Json, State
from dra_driver.explain.verdicts import DeviceAnswer, Place, RequestAnswer, why_not
from dra_driver.scheduling import consumption
from dra_driver.scheduling.fitting import Fitting, Pick
from dra_driver.scheduling.pools import candidates, pools
from dra_driver.scheduling.requests import Request, classes_of, requests_of
from dra_driver.scheduling.selectors import Compile, SelectorError


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """One node. problem: why the claim gets nothing there, '' where it fits; chosen: what it would get."""

    node: str
    problem: str
    requests: tuple[RequestAnswer, ...] = ()
    chosen: tuple[Json, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether the claim can be allocated there now."""
        return not self.problem


@dataclass(frozen=True, slots=True)
class Answer:
    """One claim. results: its allocation, if it has one; problems: what keeps it from every node."""

    question: Question
    results: tuple[Json, ...] = ()
    nodes: tuple[NodeAnswer, ...] = ()
    problems: tuple[str, ...] = ()
    incomplete: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether it is allocated, or can be."""
        return bool(self.results) or (not self.problems and any(node.fits for node in self.nodes))


def answer(state: State, question: Question, compiler: Compile, only: str | None = None) -> Answer:
    """Explain one claim. only: the one node to look at."""
    claim = question.claim
    results = tuple(consumption.results(claim))
    incomplete = tuple(
        f"pool {pool.name} of {pool.driver} has {len(pool.specs)} of {pool.expected} slices: "
        "its driver is changing it, and nothing is taken from it meanwhile"
        for pool in pools(state.slices)
        if not pool.complete
    )
    problems = tuple(_problems(state, claim))
    if problems and not results:
        return Answer(question, problems=problems, incomplete=incomplete)
    found = []
    for name, labels in nodes.names_and_labels(state):
        if (only is None and not results) or name == only or any(_is_of(result, state, name) for result in results):
            devices = candidates(state.slices, name, labels)
            found.append(_on_node(state, question, Place(name, devices, state.usage, state.classes, compiler)))
    return Answer(question, results, tuple(found), (), incomplete)


def _problems(state: State, claim: Json) -> Iterator[str]:
    """What is wrong wherever the claim would go."""
    for request, name in classes_of(claim):
        if name not in state.classes:
            near = get_close_matches(name, state.classes, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(sorted(state.classes)) or 'none'}"
            yield f"request {request}: there is no DeviceClass {name!r}; {hint}"
    if not state.slices:
        yield (
            "there is no ResourceSlice at all: no DRA driver has published devices; look at the driver's pods, "
            "and run `dra-driver doctor` on a node with a GPU"
        )


def _on_node(state: State, question: Question, place: Place) -> NodeAnswer:
    claim, fitting = question.claim, Fitting(place.compiler)
    requests = tuple(
        _on_devices(state, request, place, fitting)
        for alternatives in requests_of(claim, state.classes)
        for request in alternatives
    )
    obstacle = nodes.obstacle(state, question.pod, place.node)
    if obstacle:
        return NodeAnswer(place.node, obstacle, requests)
    found = place.allocate(claim)
    if isinstance(found, str):
        return NodeAnswer(place.node, why_not(claim, place, requests, found), requests)
    return NodeAnswer(place.node, "", requests, tuple(found))


def _on_devices(state: State, request: Request, place: Place, fitting: Fitting) -> RequestAnswer:
    answers = []
    for candidate in place.devices:
        try:
            found = fitting.judge(request, candidate, place.used)
        except SelectorError as error:
            words: Reason | None = failed(error)
        else:
            words = None if isinstance(found, Pick) else reason(state, request, candidate, found)
        answers.append(DeviceAnswer(*candidate.id, words))
    return RequestAnswer(
        request.name,
        request.device_class["metadata"]["name"],
        "all" if request.every else str(request.count),
        tuple(answers),
    )


def _is_of(result: Json, state: State, node: str) -> bool:
    """Whether an allocated device is in a slice of the node."""
    return any(
        each["spec"].get("nodeName") == node
        and (each["spec"]["driver"], each["spec"]["pool"]["name"]) == (result["driver"], result["pool"])
        for each in state.slices
    )
