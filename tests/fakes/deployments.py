"""Deployments of one namespace in memory, with the API server's rules: names, UIDs, deletion in the foreground."""

import copy
import itertools
from collections.abc import Callable, Mapping, Sequence

from dra_driver.model.errors import ApiError
from dra_driver.ports import Json


class FakeDeployments:
    """DeploymentApi. A deleted Deployment stays until ``settle`` has taken its pods away.

    failures: verb (``get``, ``labelled``, ``create``, ``delete``, ``pods``) -> error of every call of it.
    running: the pods. calls: verbs that got this far. on_call: called with each verb before it counts.
    """

    namespace = "dra-driver-gpu"

    def __init__(self) -> None:
        self.failures: dict[str, ApiError] = {}
        self.stored: dict[str, Json] = {}
        self.running: list[Json] = []
        self.calls: list[str] = []
        self.on_call: Callable[[str], None] = lambda verb: None
        self._uids = itertools.count(1)

    def get(self, name: str) -> Json | None:
        self._call("get")
        return copy.deepcopy(self.stored.get(name))

    def labelled(self, labels: Mapping[str, str]) -> Sequence[Json]:
        self._call("labelled")
        return [copy.deepcopy(each) for each in self.stored.values() if _has(each, labels)]

    def create(self, deployment: Json) -> Json:
        self._call("create")
        name = deployment["metadata"]["name"]
        if name in self.stored:
            raise ApiError(f'deployments.apps "{name}" already exists', 409)
        stored = copy.deepcopy(deployment)
        stored["metadata"] |= {"uid": f"uid-{next(self._uids)}", "namespace": self.namespace}
        self.stored[name] = stored
        return copy.deepcopy(stored)

    def delete(self, deployment: Json) -> None:
        self._call("delete")
        metadata = deployment["metadata"]
        stored = self.stored.get(metadata["name"])
        if stored is None:
            return
        if stored["metadata"]["uid"] != metadata["uid"]:
            raise ApiError("the UID in the precondition does not match", 409)
        stored["metadata"]["deletionTimestamp"] = "2026-12-01T12:00:00Z"
        for each in self.running:
            each["metadata"]["deletionTimestamp"] = "2026-12-01T12:00:00Z"

    def pods(self, labels: Mapping[str, str]) -> Sequence[Json]:
        self._call("pods")
        return [copy.deepcopy(each) for each in self.running if _has(each, labels)]

    def settle(self) -> None:
        """Let the controllers and the kubelet do their part of all deletions."""
        self.running = [each for each in self.running if "deletionTimestamp" not in each["metadata"]]
        self.stored = {n: each for n, each in self.stored.items() if "deletionTimestamp" not in each["metadata"]}

    def _call(self, verb: str) -> None:
        self.on_call(verb)
        self.calls.append(verb)
        if verb in self.failures:
            raise self.failures[verb]


def _has(found: Json, labels: Mapping[str, str]) -> bool:
    return labels.items() <= (found["metadata"].get("labels") or {}).items()
