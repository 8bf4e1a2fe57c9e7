"""The official Kubernetes client without what plain JSON does not need.

``import kubernetes`` costs half a second and 35 MiB, nearly all of it for models, OAuth and YAML. Here its parent
packages are registered without being run, and only the REST layer, the configuration and the in-cluster loader are
imported. Whoever asks such a package for anything else gets it whole, late.
"""

import importlib
import importlib.util
import sys
import threading
from dataclasses import dataclass
from types import ModuleType
from typing import Any

_PACKAGES = ("kubernetes", "kubernetes.client", "kubernetes.config", "kubernetes.utils")
_ORDER_TO_RUN = ("kubernetes.client", "kubernetes.utils", "kubernetes.config", "kubernetes")
"""Each package's ``__init__`` finds what it imports in those before it."""

_lock = threading.RLock()
_not_run: dict[str, ModuleType] = {}


@dataclass(frozen=True, slots=True)
class Client:
    """What we use of the client."""

    RESTClientObject: Any
    ApiException: type[Exception]
    Configuration: Any
    load_incluster_config: Any
    ConfigException: type[Exception]


def load() -> Client:
    """The client's REST layer; about 13 MiB. Does nothing odd when the client was imported whole before."""
    with _lock:
        for name in _PACKAGES:
            if name not in sys.modules:
                _register(name)
        rest = importlib.import_module("kubernetes.client.rest")
        configuration = importlib.import_module("kubernetes.client.configuration")
        # The in-cluster loader takes this from the package, which has not been run.
        vars(sys.modules["kubernetes.client"]).setdefault("Configuration", configuration.Configuration)
        incluster = importlib.import_module("kubernetes.config.incluster_config")
    return Client(
        rest.RESTClientObject,
        rest.ApiException,
        configuration.Configuration,
        incluster.load_incluster_config,
        incluster.ConfigException,
    )


def load_whole() -> ModuleType:
    """The client's kubeconfig loader, with all that it drags in: for credentials that a program must fetch."""
    with _lock:
        for name in _ORDER_TO_RUN:
            module = _not_run.pop(name, None)
            if module is not None and module.__spec__ is not None and module.__spec__.loader is not None:
                vars(module).pop("__getattr__", None)
                module.__spec__.loader.exec_module(module)
        return importlib.import_module("kubernetes.config.kube_config")


def _register(name: str) -> None:
    """Make a package importable from without running its ``__init__``."""
    spec = importlib.util.find_spec(name)
    if spec is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    module = importlib.util.module_from_spec(spec)

    def whole(attribute: str) -> Any:
        # Tools that look through all modules ask for dunder names; that is no reason to load anything.
        if attribute.startswith("__") and attribute != "__all__":
            raise AttributeError(f"module {name!r} has no attribute {attribute!r}")
        load_whole()
        return getattr(module, attribute)

    vars(module)["__getattr__"] = whole
    sys.modules[name] = module
    _not_run[name] = module
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, module)
