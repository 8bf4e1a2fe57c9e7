"""Kubernetes' own schemas of its objects, one set a version, as the PyPI distribution kubernetes-validate has them.

Its own ``validate`` reads the definitions, 1.6 MB, anew for each object; here they are kept. Strict: unknown fields are
errors. ``make chart`` installs it (extra ``chart``).
"""

import functools
import json
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry, Resource

Json = dict[str, Any]


class NoSchema(Exception):
    """There are no schemas of this version, or none of this kind."""


def errors(document: Json, version: str) -> list[str]:
    """What Kubernetes of a version would not take, as ``path: message``. Raises NoSchema. version: as ``1.36.3``."""
    minor = version.rpartition(".")[0]
    group, _, api_version = document["apiVersion"].rpartition("/")
    name = "-".join(filter(None, (document["kind"].lower(), group.partition(".")[0], api_version)))
    found = _validator(minor, name).iter_errors(document)
    return sorted(f"{'.'.join(map(str, each.absolute_path))}: {each.message}" for each in found)


def _folder(minor: str) -> Traversable:
    every = files("kubernetes_validate").joinpath("kubernetes-json-schema").iterdir()
    matching = [each for each in every if each.name.startswith(f"v{minor}.") and each.name.endswith("-strict")]
    if not matching:
        raise NoSchema(f"kubernetes-validate has no schemas of Kubernetes {minor}: install a newer one")
    return max(matching, key=lambda each: each.name)


def _read(minor: str, name: str) -> Json:
    try:
        found: Json = json.loads(_folder(minor).joinpath(f"{name}.json").read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise NoSchema(f"Kubernetes {minor} has no schema {name}") from error
    return found


@functools.cache
def _definitions(minor: str) -> Registry[Any]:
    return Resource.from_contents(_read(minor, "_definitions")) @ Registry()


@functools.cache
def _validator(minor: str, name: str) -> Draft202012Validator:
    return Draft202012Validator(_read(minor, name), registry=_definitions(minor))
