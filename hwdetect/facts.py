"""Plain facts with their sources, and the one way they become JSON and come back. Imports nothing of Bayard.

A fact that was not found is None; a measured zero is 0. `sources` names, for each field that is known, where it was
read: a file, a library or a tool's command line.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from functools import cache
from typing import Any, Self, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")

_UNTRACKED = frozenset({"sources"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Base of every described thing: fields are values or None, `sources` says where each known one came from.

    A field that equals its default is unknown, which is why no default may be a thing that can be measured.
    """

    sources: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, source: str, **values: Any) -> Self:
        """Build from what one source says; None and empty text stay unknown and get no source."""
        known = {name: value for name, value in values.items() if value is not None and value != ""}
        return cls(**known, sources=dict.fromkeys(known, source))

    def with_facts(self, source: str, **values: Any) -> Self:
        """A copy in which `values` replace what was known."""
        known = {name: value for name, value in values.items() if value is not None}
        merged = {**self.sources, **dict.fromkeys(known, source)}
        return dataclasses.replace(self, **known, sources=merged)

    def filled_from(self, other: Self) -> Self:
        """A copy in which only what is unknown here is taken from `other`."""
        taken: dict[str, Any] = {}
        sources = dict(self.sources)
        for item in dataclasses.fields(self):
            if item.name in _UNTRACKED:
                continue
            theirs = getattr(other, item.name)
            if getattr(self, item.name) == item.default and theirs != item.default:
                taken[item.name] = theirs
                if item.name in other.sources:
                    sources[item.name] = other.sources[item.name]
        return dataclasses.replace(self, **taken, sources=sources) if taken else self


def encode(value: Any) -> Any:
    """Turn dataclasses, enums, times and tuples into what `json` writes."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: encode(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    return value


@cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def decode(cls: type[T], data: Any) -> T:
    """Build `cls` from what `encode` wrote.

    Raises: ValueError for an unknown key or a value of another shape, naming it
    """
    decoded = _decode(cls, data, cls.__name__)
    if not isinstance(decoded, cls):
        raise ValueError(f"{cls.__name__}: expected an object, got {type(data).__name__}")
    return decoded


def _decode(kind: Any, data: Any, where: str) -> Any:
    origin = get_origin(kind)
    if origin is Union or origin is types.UnionType:
        if data is None:
            return None
        (kind,) = [arg for arg in get_args(kind) if arg is not type(None)]
        return _decode(kind, data, where)
    if origin is tuple:
        if not isinstance(data, list):
            raise ValueError(f"{where}: expected a list, got {type(data).__name__}")
        item_kind = get_args(kind)[0]
        return tuple(_decode(item_kind, item, f"{where}[{n}]") for n, item in enumerate(data))
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(data, dict):
            raise ValueError(f"{where}: expected an object, got {type(data).__name__}")
        return dict(data)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _decode_dataclass(kind, data, where)
    if kind is datetime:
        return datetime.fromisoformat(str(data))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(data)
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    if isinstance(kind, type) and (not isinstance(data, kind) or (kind is int and isinstance(data, bool))):
        raise ValueError(f"{where}: expected {kind.__name__}, got {type(data).__name__}")
    return data


def _decode_dataclass(kind: type, data: Any, where: str) -> Any:
    if not isinstance(data, dict):
        raise ValueError(f"{where}: expected an object, got {type(data).__name__}")
    hints = _hints(kind)
    unknown = sorted(set(data) - set(hints))
    if unknown:
        raise ValueError(f"{where}: unknown key {unknown[0]!r}")
    return kind(**{name: _decode(hints[name], value, f"{where}.{name}") for name, value in data.items()})
