"""CEL selectors of DeviceClasses and requests, evaluated by the CEL library: the variable ``device`` and its functions.

As ``k8s.io/dynamic-resource-allocation/cel`` sees a device, with quantities and versions as values that are compared.
The library comes with ``pip install 'dra-driver-gpu[explain]'``; the node's driver needs none.
"""

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from dra_driver.model.errors import DriverError
from dra_driver.scheduling import quantities
from dra_driver.scheduling.selectors import Json, Match, SelectorError

_DOMAIN = re.compile(r"""device\.(?:attributes|capacity)\s*\[\s*(['"])(.+?)\1\s*\]""")
_PACKAGE = "dra"
_MESSAGE = f"{_PACKAGE}.Value"
_QUANTITY, _VERSION = "quantity", "version"


class CelMissing(DriverError):
    """The CEL library is not installed."""


class Cel:
    """Compiles selectors. Raises CelMissing, naming what to install."""

    def __init__(self) -> None:
        try:
            import semver
            from cel_expr_python import cel
            from cel_expr_python.ext import ext_bindings, ext_optional, ext_strings
        except ImportError as error:
            raise CelMissing(
                f"selectors are in CEL, and {error.name} is not installed here: pip install 'dra-driver-gpu[explain]'"
            ) from error
        self._values = _Values(semver.Version.parse)
        self._compiled: dict[str, Match] = {}
        self._env = cel.NewEnv(
            self._values.pool,
            variables={"device": cel.Type.Map(cel.Type.STRING, cel.Type.DYN)},
            extensions=[ext_bindings.ExtBindings(), ext_optional.ExtOptional(), ext_strings.ExtStrings()],
            functions=_functions(cel, self._values),
        )

    def compile_selector(self, expression: str) -> Match:
        """An expression as a predicate over (driver, device). Raises SelectorError where it is no CEL, or not all of
        it is known here.
        """
        if expression not in self._compiled:
            self._compiled[expression] = self._compile(expression)
        return self._compiled[expression]

    def _compile(self, expression: str) -> Match:
        try:
            compiled = self._env.compile(expression)
        except RuntimeError as error:
            raise SelectorError(f"CEL {expression!r} cannot be compiled: {_first_line(error)}") from error
        if compiled.return_type().name().lower() not in ("bool", "dyn"):
            raise SelectorError(f"CEL {expression!r} is no condition: it gives {compiled.return_type().name()}")
        # A domain that a device has nothing of is an empty map to Kubernetes, which has() and ? may look into.
        domains = {found[2] for found in _DOMAIN.finditer(expression)}

        def selected(driver: str, device: Json) -> bool:
            result = compiled.eval(data={"device": self._values.device(driver, device, domains)})
            value = result.value()
            if not isinstance(value, bool):
                # An error is a value too.
                why = _first_line(value) if result.type().name() == "ERROR" else f"it gives {value}, no bool"
                raise SelectorError(f"CEL {expression!r} fails on device {device['name']}: {why}")
            return value

        return selected


class _Values:
    """Quantities and versions as one message type: the library tells methods apart by kind of value, not by message."""

    def __init__(self, parse_version: Callable[[str], Any]) -> None:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

        self._parse_version = parse_version
        file = descriptor_pb2.FileDescriptorProto(name="dra_values.proto", package=_PACKAGE, syntax="proto3")
        message = file.message_type.add(name="Value")
        field = descriptor_pb2.FieldDescriptorProto
        for number, name in enumerate(("kind", "text"), start=1):
            message.field.add(name=name, number=number, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
        self.pool = descriptor_pool.DescriptorPool()
        self.pool.Add(file)
        self._message: Any = message_factory.GetMessageClass(self.pool.FindMessageTypeByName(_MESSAGE))

    def quantity(self, text: str) -> Any:
        """A quantity. Raises ValueError."""
        if quantities.parse(text) is None:
            raise ValueError(f"{text!r} is no quantity")
        return self._message(kind=_QUANTITY, text=text)

    def version(self, text: str) -> Any:
        """A semantic version. Raises ValueError."""
        self._parse_version(text)
        return self._message(kind=_VERSION, text=text)

    def number(self, value: Any) -> Fraction:
        """The number behind a quantity. Raises TypeError for a version."""
        number = quantities.parse(value.text) if value.kind == _QUANTITY else None
        if number is None:
            raise TypeError(f"no such overload for {value.kind} {value.text}")
        return number

    def parsed(self, value: Any) -> Any:
        """A version, parsed. Raises TypeError for a quantity."""
        if value.kind != _VERSION:
            raise TypeError(f"no such overload for {value.kind} {value.text}")
        return self._parse_version(value.text)

    def compare(self, one: Any, other: Any) -> int:
        """-1, 0 or 1. Raises TypeError where one is a quantity and the other a version."""
        if one.kind != other.kind:
            raise TypeError(f"a {one.kind} cannot be compared with a {other.kind}")
        read = self.number if one.kind == _QUANTITY else self.parsed
        first, second = read(one), read(other)
        return int(first > second) - int(first < second)

    def device(self, driver: str, device: Json, domains: set[str]) -> Json:
        """The variable ``device``."""
        return {
            "driver": driver,
            "allowMultipleAllocations": bool(device.get("allowMultipleAllocations")),
            "attributes": self._by_domain(driver, device.get("attributes") or {}, domains, self._attribute),
            "capacity": self._by_domain(driver, device.get("capacity") or {}, domains, self._capacity),
        }

    @staticmethod
    def _by_domain(driver: str, entries: Mapping[str, Json], domains: set[str], value: Callable[[Json], Any]) -> Json:
        found: Json = {domain: {} for domain in domains}
        for qualified, entry in entries.items():
            domain, _, name = qualified.rpartition("/")
            found.setdefault(domain or driver, {})[name] = value(entry)
        return found

    def _attribute(self, entry: Json) -> Any:
        ((kind, value),) = entry.items()
        return self.version(str(value)) if kind == _VERSION else value

    def _capacity(self, entry: Json) -> Any:
        return self.quantity(str(entry["value"]))


def _functions(cel: Any, values: _Values) -> list[Any]:
    """The functions of Kubernetes for quantities and versions."""
    kind, value = cel.Type, cel.Type(_MESSAGE)

    def declared(name: str, returns: Any, parameters: list[Any], function: Callable[..., Any], member: bool) -> Any:
        overload = cel.Overload(f"{name}_{len(parameters)}", returns, parameters, is_member=member, impl=function)
        return cel.FunctionDecl(name, [overload])

    def valid(read: Callable[[str], Any]) -> Callable[[str], bool]:
        def check(text: str) -> bool:
            try:
                read(text)
            except ValueError:
                return False
            return True

        return check

    def integer(one: Any) -> int:
        number = values.number(one)
        if number.denominator != 1:
            raise ValueError(f"quantity {one.text} is no integer")
        return int(number)

    def sign(one: Any) -> int:
        number = values.number(one)
        return int(number > 0) - int(number < 0)

    return [
        declared("quantity", value, [kind.STRING], values.quantity, False),
        declared("isQuantity", kind.BOOL, [kind.STRING], valid(values.quantity), False),
        declared("semver", value, [kind.STRING], values.version, False),
        declared("isSemver", kind.BOOL, [kind.STRING], valid(values.version), False),
        declared("compareTo", kind.INT, [value, value], values.compare, True),
        declared("isGreaterThan", kind.BOOL, [value, value], lambda a, b: values.compare(a, b) > 0, True),
        declared("isLessThan", kind.BOOL, [value, value], lambda a, b: values.compare(a, b) < 0, True),
        declared("asInteger", kind.INT, [value], integer, True),
        declared("isInteger", kind.BOOL, [value], lambda a: values.number(a).denominator == 1, True),
        declared("asApproximateFloat", kind.DOUBLE, [value], lambda a: float(values.number(a)), True),
        declared("sign", kind.INT, [value], sign, True),
        declared("major", kind.INT, [value], lambda a: values.parsed(a).major, True),
        declared("minor", kind.INT, [value], lambda a: values.parsed(a).minor, True),
        declared("patch", kind.INT, [value], lambda a: values.parsed(a).patch, True),
    ]


def _first_line(error: object) -> str:
    return str(error).strip().splitlines()[0]
