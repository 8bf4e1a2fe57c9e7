"""The go.mod of the Kubernetes program, from the one that Kubernetes publishes. Pure.

Kubernetes' own go.mod replaces its staging modules by folders of its repository, and a replacement counts only in
the main module: whoever requires k8s.io/kubernetes has to replace each of them by what was published.
"""

import re
from typing import Final

from hack.cluster import versions
from hack.cluster.errors import ClusterError

_STAGING: Final = re.compile(r"^\s*(\S+) => \./staging/src/\S+$", re.MULTILINE)
_GO: Final = re.compile(r"^go (\S+)$", re.MULTILINE)
_GODEBUG: Final = re.compile(r"^godebug default=(\S+)$", re.MULTILINE)
_DIRECT: Final = ("github.com/spf13/cobra", "go.etcd.io/etcd/server/v3")


def write(version: str, upstream: str) -> str:
    """Text of go.mod. version: of Kubernetes, as 1.36.3; upstream: the text of its go.mod. Raises ClusterError."""
    replaced = sorted(set(_STAGING.findall(upstream)))
    if not replaced:
        raise ClusterError(f"go.mod of k8s.io/kubernetes v{version} replaces no staging modules")
    published = versions.staging(version)
    requirements = {"k8s.io/kubernetes": f"v{version}", "k8s.io/component-base": published}
    requirements |= {module: _required(version, upstream, module) for module in _DIRECT}
    lines = ["module cluster/kubernetes", "", f"go {_one(version, upstream, _GO, 'go')}", ""]
    lines += [f"godebug default={default}" for default in _GODEBUG.findall(upstream)]
    lines += ["", "require (", *(f"\t{module} {at}" for module, at in sorted(requirements.items())), ")"]
    lines += ["", "replace (", *(f"\t{module} => {module} {published}" for module in replaced), ")", ""]
    return "\n".join(lines)


def link_flags(version: str) -> str:
    """What makes the components say which version they are; without it they take themselves for v0.0.0."""
    major, minor, _ = version.split(".")
    values = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    return " ".join(f"-X k8s.io/component-base/version.{name}={value}" for name, value in values.items())


def _required(version: str, upstream: str, module: str) -> str:
    return _one(version, upstream, re.compile(rf"^\s*(?:require )?{re.escape(module)} (v\S+)", re.MULTILINE), module)


def _one(version: str, upstream: str, pattern: re.Pattern[str], what: str) -> str:
    found = pattern.search(upstream)
    if found is None:
        raise ClusterError(f"go.mod of k8s.io/kubernetes v{version} says nothing about {what}")
    return found.group(1)
