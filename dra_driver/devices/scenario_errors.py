"""Turns pydantic's complaint about a scenario into one line: key, value found, values allowed. No I/O."""

from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

_SHOWN = 60


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """The first complaint in full, and how many there are besides."""
    problems = error.errors(include_url=False)
    first = problems[0]
    text = _one(first["loc"], first["type"], first["msg"], first["input"], model)
    return text if len(problems) == 1 else f"{text} (and {len(problems) - 1} more)"


def _one(loc: tuple[int | str, ...], kind: str, message: str, value: Any, model: type[BaseModel]) -> str:
    key = ".".join(str(part) for part in loc) or "the whole file"
    if kind == "missing":
        return f"{key} is required"
    if kind == "extra_forbidden":
        return f"{key} is not a known key (known: {', '.join(_keys(model, loc[:-1]))})"
    shown = repr(value)
    if len(shown) > _SHOWN:
        shown = shown[: _SHOWN - 3] + "..."
    hint = " (put it in quotes)" if kind == "string_type" and isinstance(value, int | float) else ""
    return f"{key}: found {shown}: {message.removeprefix('Value error, ')}{hint}"


def _keys(model: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    """The keys that are known at a place of the file."""
    for part in loc:
        for field in model.model_fields.values():
            if field.alias == part:
                model = next(_models(field.annotation), model)
    return [field.alias or name for name, field in model.model_fields.items()]


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models(argument)
