"""Frozen dataclasses as JSON and back, each field checked by its type: what others wrote is refused with its place."""

from __future__ import annotations

import dataclasses
import types
import typing
from functools import cache
from typing import Any, Literal, TypeVar

Record = TypeVar("Record")
PLAIN = {str: "a text", int: "a whole number", bool: "true or false"}


def read(kind: type[Record], value: Any, where: str = "") -> Record:
    """The record that ``value``, as JSON gives it, stands for. ValueError with the field that is missing or wrong.

    Fields may be texts, whole numbers, truth values, other records, Literal of texts, one of these or None, and tuples
    and dicts of them. A field that no record has is refused; one with a default may be missing.
    """
    if not isinstance(value, dict):
        raise ValueError(f"{where or '(whole file)'}: no record")
    hints, known = _hints(kind), {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    if strange := value.keys() - known.keys():
        raise ValueError(f"{_inner(where, min(strange))}: no such field")
    for name, field in known.items():
        optional = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        if name not in value and not optional:
            raise ValueError(f"{_inner(where, name)}: is missing")
    return kind(**{name: _value(hints[name], one, _inner(where, name)) for name, one in value.items()})


def written(record: Any) -> dict[str, Any]:
    """A record for ``json.dumps``, without the fields that have their defaults."""
    kept = {}
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        absent = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
        if value != absent:
            kept[field.name] = _plain(value)
    return kept


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return written(value) if dataclasses.is_dataclass(value) else value


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _inner(where: str, name: object) -> str:
    return f"{where}.{name}" if where else str(name)


def _value(kind: Any, value: Any, where: str) -> Any:
    """``value`` as the type of its field has it."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return None if value is None else _value(next(x for x in inner if x is not type(None)), value, where)
    if origin is Literal:
        if value in inner and isinstance(value, str):
            return value
        raise ValueError(f"{where}: {value!r} is none of {', '.join(inner)}")
    if origin is tuple and isinstance(value, list):
        return tuple(_value(inner[0], one, _inner(where, n)) for n, one in enumerate(value))
    if origin is dict and isinstance(value, dict):
        return {name: _value(inner[1], one, _inner(where, name)) for name, one in value.items()}
    if dataclasses.is_dataclass(kind):
        return read(typing.cast(type[Any], kind), value, where)
    if type(value) is not kind:
        raise ValueError(f"{where}: {value!r} is not {PLAIN.get(kind, 'of its type')}")
    return value
