"""YAML and JSON documents that remember on which line each of their values stands. Knows no Kubernetes types."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from dra_driver.validation.findings import Path

MAX_NODES = 200_000
"""Most values in one document with its aliases written out; more is an attack or a mistake."""


MAX_DEPTH = 200
"""Deepest nesting; an alias inside its own anchor has no end."""


class Unreadable(Exception):
    """The text is no YAML from ``line`` on."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a stream. duplicates: paths of keys that were written twice, with the second one's line."""

    data: Any
    node: yaml.Node
    duplicates: tuple[tuple[Path, int], ...] = ()

    def line(self, path: Path = ()) -> int:
        """Line of the key or list item at a path, or of the nearest parent that exists. The first line is 1."""
        node, line = self.node, self.node.start_mark.line + 1
        for part in path:
            key, value = _child(node, part)
            if key is None or value is None:
                break
            node, line = value, key.start_mark.line + 1
        return line


def read_documents(text: str) -> Iterator[Document]:
    """The documents of a text that are not empty, in order. Raises Unreadable at the first that is broken."""
    try:
        yield from _documents(_without_tabs(text))
    except yaml.reader.ReaderError as error:
        raise Unreadable(text.count("\n", 0, error.position) + 1, f"not YAML: {error.reason}") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise Unreadable(mark.line + 1 if mark else 1, f"not YAML: {_problem(error)}{_hint(text)}") from error
    except RecursionError as error:
        raise Unreadable(1, "not YAML that can be read: nested too deeply") from error
    except ValueError as error:  # a number or an escape that Python cannot take, such as 0b without digits
        raise Unreadable(1, f"not YAML that can be read: {error}") from error


class _Loader(yaml.SafeLoader):
    """YAML as kubectl takes it: dates stay strings, as JSON has none."""

    yaml_implicit_resolvers = {
        first: [
            (tag, pattern)
            for tag, pattern in resolvers
            if tag not in ("tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:value")
        ]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def _documents(text: str) -> Iterator[Document]:
    loader = _Loader(text)
    try:
        while loader.check_node():
            node = loader.get_node()
            if node is None:
                continue
            duplicates = tuple(_duplicates(node))
            data = loader.construct_document(node)
            if data is not None:
                yield Document(data, node, duplicates)
    finally:
        loader.dispose()


def _duplicates(root: yaml.Node) -> Iterator[tuple[Path, int]]:
    """Keys written twice. Raises Unreadable when aliases blow the document up."""
    pending: list[tuple[yaml.Node, Path]] = [(root, ())]
    visited = 0
    while pending:
        node, path = pending.pop()
        visited += 1
        if len(path) > MAX_DEPTH:
            raise Unreadable(node.start_mark.line + 1, f"nested more than {MAX_DEPTH} deep, aliases written out")
        if visited > MAX_NODES:
            raise Unreadable(root.start_mark.line + 1, f"more than {MAX_NODES} values, aliases written out")
        if isinstance(node, yaml.SequenceNode):
            pending.extend((item, (*path, index)) for index, item in enumerate(node.value))
        elif isinstance(node, yaml.MappingNode):
            seen: set[str] = set()
            for key, value in node.value:
                name = str(key.value)
                if name in seen and key.tag != "tag:yaml.org,2002:merge":
                    yield (*path, name), key.start_mark.line + 1
                seen.add(name)
                pending.append((value, (*path, name)))


def _child(node: yaml.Node, part: str | int) -> tuple[yaml.Node | None, yaml.Node | None]:
    """The node that marks a child's place, and the child."""
    if isinstance(node, yaml.MappingNode):
        for key, value in reversed(node.value):
            if key.value == str(part):
                return key, value
    elif isinstance(node, yaml.SequenceNode) and str(part).isdecimal() and int(part) < len(node.value):
        item = node.value[int(part)]
        return item, item
    return None, None


def _without_tabs(text: str) -> str:
    """JSON may be indented with tabs, YAML may not. Lines and columns stay as they are."""
    if "\t" not in text or not text.lstrip().startswith(("{", "[")):
        return text
    try:
        json.loads(text)
    except ValueError:
        return text
    return text.replace("\t", " ")


def _problem(error: yaml.MarkedYAMLError) -> str:
    return ", ".join(part for part in (error.context, error.problem) if part)


def _hint(text: str) -> str:
    return "; render Helm templates first: helm template ... | dra-driver validate -" if "{{" in text else ""
