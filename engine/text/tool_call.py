"""ToolCall, what a parser of calls is, and how a call's JSON is read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

Named = tuple[str, dict[str, Any]]  # a function's name and its arguments


@dataclass(frozen=True, slots=True)
class ToolCall:
    index: int
    name: str
    arguments: str  # JSON text of an object


class ToolParser(Protocol):
    """Text in, text and calls out, in order. However the text is split over calls, what comes out joined is the same.

    A call comes whole, when it is complete. What looks like one and is none, or is cut off, comes as text. White space
    beside calls is left out. Owner: one stream; not for several threads.
    """

    def feed(self, text: str) -> list[str | ToolCall]: ...

    def flush(self) -> list[str | ToolCall]: ...


def numbered(index: int, named: Named) -> ToolCall:
    return ToolCall(index, named[0], json.dumps(named[1], ensure_ascii=False))


def strict_json(text: str) -> Any:
    """The value of a JSON text.

    Raises: ValueError for anything else, NaN and infinities included, which are no JSON; RecursionError
    """
    return json.loads(text, parse_constant=_no_constant)


def json_or_none(text: str) -> Any:
    """The value of a JSON text; None when it is none, or null."""
    try:
        return strict_json(text)
    except (ValueError, RecursionError):
        return None


def named_call(value: Any) -> Named | None:
    """A call from {"name": ..., "arguments" or "parameters": {...}}; None when it is none."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):  # some models write the object as text
        arguments = json_or_none(arguments)
    return (value["name"], arguments) if isinstance(arguments, dict) else None


def declared_types(tools: Sequence[Mapping[str, Any]], function: str) -> dict[str, frozenset[str]]:
    """The JSON types that a function's declaration gives its parameters, as far as it says."""
    for tool in tools:
        described = tool.get("function", tool)
        if isinstance(described, Mapping) and described.get("name") == function:
            schema = described.get("parameters")
            properties = schema.get("properties") if isinstance(schema, Mapping) else None
            if isinstance(properties, Mapping):
                return {str(key): _types(value) for key, value in properties.items()}
    return {}


def value_of(text: str, types: frozenset[str] | None) -> Any:
    """An argument that a model wrote without quotes: text where the declaration says so, else JSON if it is any."""
    if types is not None and "string" in types:
        return None if text == "null" and "null" in types else text
    try:
        return strict_json(text)
    except (ValueError, RecursionError):
        return text


def _types(schema: Any) -> frozenset[str]:
    if not isinstance(schema, Mapping):
        return frozenset()
    stated = schema.get("type", ())
    found = {stated} if isinstance(stated, str) else {kind for kind in stated if isinstance(kind, str)}
    for either in ("anyOf", "oneOf"):
        for option in schema.get(either) or ():
            found |= _types(option)
    if not found and all(isinstance(value, str) for value in schema.get("enum") or (None,)):
        found = {"string"}
    return frozenset(found)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
