"""A JSON schema with its objects closed: what is written still matches it, and comes to an end sooner.

A schema that only names properties lets others in beside them, and a model that is kept to it may go on making some up.
"""

from __future__ import annotations

from typing import Any

_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})  # name -> schema
_VALUES = frozenset({"const", "enum", "default", "examples", "required"})
# Where one of these is anywhere, a part that is closed could make the whole mean something else.
_JOINS = frozenset({"allOf", "oneOf", "not", "if", "contains", "dependentSchemas", "unevaluatedProperties"})
# With these the properties of an object stand in more than one place.
_ELSEWHERE = frozenset(
    {"$ref", "anyOf", "patternProperties", "propertyNames", "minProperties", "additionalProperties"}
)  # fmt: skip


def closed_schema(schema: Any) -> Any:
    """Objects that name their properties, and leave open whether there are more, have no more."""
    return schema if _joins(schema) else _closed(schema)


def _joins(node: Any) -> bool:
    """Whether several schemas bear on one object somewhere: each of them must stay as it is for the others."""
    if isinstance(node, dict):
        return not _JOINS.isdisjoint(node) or any(_joins(value) for value in node.values())
    return isinstance(node, list) and any(map(_joins, node))


def _closed(node: Any) -> Any:
    if isinstance(node, list):
        return [_closed(item) for item in node]
    if not isinstance(node, dict):
        return node
    closed: dict[str, Any] = {}
    for key, value in node.items():
        if key in _MAPS and isinstance(value, dict):
            closed[key] = {name: _closed(schema) for name, schema in value.items()}
        else:
            closed[key] = value if key in _VALUES else _closed(value)
    properties = closed.get("properties")
    if isinstance(properties, dict) and not _ELSEWHERE & closed.keys():
        required = closed.get("required")
        if not isinstance(required, list) or all(name in properties for name in required if isinstance(name, str)):
            closed["additionalProperties"] = False
    return closed
