"""Pods of the scenes in a cluster: made, waited for, read, and deleted."""

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from hack.cluster.api import Api
from hack.cluster.errors import ClusterError
from hack.hardware.errors import HardwareError
from hack.hardware.manifests import NAMESPACE, Json

T = TypeVar("T")

SECONDS: Final = 60.0
_LOOK_S: Final = 0.05
_PODS: Final = f"/api/v1/namespaces/{NAMESPACE}/pods"
_CLAIMS: Final = f"/apis/resource.k8s.io/v1/namespaces/{NAMESPACE}/resourceclaims"
_EVENTS: Final = f"/api/v1/namespaces/{NAMESPACE}/events"
_STARTS_NEVER: Final = ("CreateContainerError", "RunContainerError", "CreateContainerConfigError")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a container that ran once has told. trouble: why it did not run, or failed; '' when neither."""

    report: Json
    trouble: str = ""

    @property
    def uuids(self) -> list[str]:
        """Of the cards that it saw."""
        return sorted(each["uuid"] for each in self.report.get("cards", ()))

    @property
    def computed(self) -> bool:
        """Whether it had cards, and copies and results of all of them were right."""
        cards = self.report.get("cards", ())
        return bool(cards) and all(each["copied_back"] and each["wrong"] == 0 for each in cards)


class Pods:
    """Pods and claims of the scenes' namespace. Raises HardwareError after a wait in vain, else ClusterError."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def apply(self, *documents: Json) -> None:
        """Make objects."""
        self._api.apply_all(documents)

    def get(self, name: str) -> Json:
        """A pod."""
        return self._api.get(f"{_PODS}/{name}")

    def claim(self, name: str) -> Json:
        """A claim."""
        return self._api.get(f"{_CLAIMS}/{name}")

    def devices(self, claim: str) -> dict[str, str]:
        """Request -> device that was allocated."""
        results = self.claim(claim)["status"]["allocation"]["devices"]["results"]
        return {each["request"]: each["device"] for each in results}

    def lines(self, pod: str, container: str = "main") -> list[Json]:
        """What a container has printed so far, its whole lines."""
        text = self._api.raw("GET", f"{_PODS}/{pod}/log?container={container}").decode()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def wait_report(self, pod: str) -> Json:
        """Wait for the first line of a pod; it."""
        return wait(lambda: next(iter(self._lines_yet(pod)), None), lambda: self._in_vain(pod, "report"))

    def wait_outcome(self, pod: str, container: str = "main") -> Outcome:
        """Wait until a container that runs once has ended, or cannot be started."""
        return wait(lambda: self._outcome(pod, container), lambda: self._in_vain(pod, "end"))

    def wait_lines(self, pod: str, enough: Callable[[list[Json]], bool], seconds: float = SECONDS) -> list[Json]:
        """Wait until what a pod has printed is enough; it."""

        def look() -> list[Json] | None:
            found = self._lines_yet(pod)
            return found if enough(found) else None

        return wait(look, lambda: self._in_vain(pod, "go on"), seconds)

    def delete(self, pods: Iterable[str], claims: Iterable[str] = ()) -> None:
        """Delete, and wait until all are gone."""
        for some in ([f"{_PODS}/{name}" for name in pods], [f"{_CLAIMS}/{name}" for name in claims]):
            for path in some:
                self._api.delete(path)
            for path in some:
                wait(partial(self._is_gone, path), partial("{} does not go".format, path))

    def delete_all(self) -> None:
        """The same for all pods and claims that there are."""
        pods, claims = (
            [each["metadata"]["name"] for each in self._api.get(path)["items"]] for path in (_PODS, _CLAIMS)
        )
        self.delete(pods, claims)

    def _is_gone(self, path: str) -> bool:
        return self._api.find(path) is None

    def _lines_yet(self, pod: str) -> list[Json]:
        status = self.get(pod).get("status", {})
        states = [each["state"] for each in status.get("containerStatuses", ())]
        return self.lines(pod) if any("running" in each or "terminated" in each for each in states) else []

    def _outcome(self, pod: str, container: str) -> Outcome | None:
        statuses = self.get(pod).get("status", {}).get("containerStatuses", ())
        state: Json = next((each["state"] for each in statuses if each["name"] == container), {})
        waiting, ended = state.get("waiting", {}), state.get("terminated")
        if waiting.get("reason") in _STARTS_NEVER:
            return Outcome({}, f"{waiting['reason']}: {waiting.get('message', '')}")
        if ended is None:
            return None
        if ended["exitCode"] == 0:
            return Outcome(self.lines(pod, container)[0])
        return Outcome({}, f"{ended.get('reason')} ({ended['exitCode']}): {ended.get('message') or self._said(pod)}")

    def _said(self, pod: str) -> str:
        return self._api.raw("GET", f"{_PODS}/{pod}/log").decode(errors="replace")[-500:]

    def _in_vain(self, pod: str, what: str) -> str:
        try:
            status = self.get(pod).get("status", {})
            events = [each for each in self._api.get(_EVENTS)["items"] if each["involvedObject"]["name"] == pod]
        except ClusterError as error:
            return f"pod {pod} does not {what}: {error}"
        states = [each.get("state") for each in status.get("containerStatuses", ())]
        said = [f"{each['reason']}: {each['message']}" for each in events if each.get("type") == "Warning"]
        return f"pod {pod} does not {what}: {status.get('phase')} {states} {' | '.join(said[-3:])}"


def wait(look: Callable[[], T | None], what: Callable[[], str], seconds: float = SECONDS) -> T:
    """The first answer that is true. Raises HardwareError with ``what`` after so long."""
    deadline = time.monotonic() + seconds
    while True:
        trouble: Any = ""
        try:
            if found := look():
                return found
        except (ClusterError, OSError) as error:
            trouble = f" ({error})"
        if time.monotonic() > deadline:
            raise HardwareError(f"not within {seconds:g} s: {what()}{trouble}")
        time.sleep(_LOOK_S)
