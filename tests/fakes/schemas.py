"""Fifty JSON schemas: nested, with references, enums, patterns, unions, formats and bounds."""

from __future__ import annotations

from typing import Any

S: dict[str, Any] = {"type": "string"}
N: dict[str, Any] = {"type": "integer"}
B: dict[str, Any] = {"type": "boolean"}


def obj(required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    found = {"type": "object", "properties": properties, "additionalProperties": False}
    return found if required is None else {**found, "required": required}


def full(**properties: Any) -> dict[str, Any]:
    return obj(list(properties), **properties)


def many(items: Any, **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, **more}


TREE = {
    "$defs": {"node": full(value=N, left={"$ref": "#/$defs/leaf"}), "leaf": {"anyOf": [N, {"type": "null"}]}},
    "$ref": "#/$defs/node",
}
LINKED = {
    "$defs": {"link": obj(["v"], v=B, next={"anyOf": [{"$ref": "#/$defs/link"}, {"type": "null"}]})},
    "$ref": "#/$defs/link",
}
SHAPES = [
    full(kind={"const": "circle"}, radius={"type": "number", "minimum": 0, "maximum": 100}),
    full(kind={"const": "square"}, side=N),
    full(kind={"const": "text"}, body={"type": "string", "maxLength": 12}),
]

SCHEMAS: list[dict[str, Any]] = [
    full(name=S),
    full(name=S, age=N, alive=B),
    obj([], name=S, age=N),
    obj(["a"], a=S, b=N, c=B),
    full(x={"type": "number"}, y={"type": "number"}),
    full(nothing={"type": "null"}),
    N,
    S,
    B,
    {"type": "null"},
    {"enum": ["red", "green", "blue"]},
    {"enum": [1, "two", None, True, {"k": [3]}]},
    {"const": {"fixed": [1, 2, 3]}},
    full(color={"enum": ["red", "green"]}, size={"enum": [1, 2, 3]}),
    many(N, minItems=1, maxItems=4),
    many(S, minItems=2, maxItems=2),
    many(many(B, minItems=1, maxItems=2), minItems=1, maxItems=3),
    many({"enum": ["a", "b"]}, maxItems=3),
    many(full(id=N, tags=many({"enum": ["x", "y"]}, maxItems=2)), minItems=1, maxItems=2),
    full(a=full(b=full(c=full(d=full(e=N))))),
    {"type": "string", "pattern": "^[a-z]{3,8}$"},
    {"type": "string", "pattern": "^\\d{4}-\\d{2}-\\d{2}$"},
    {"type": "string", "pattern": "^(GET|POST|PUT) /[a-z0-9/]{1,10}$"},
    {"type": "string", "pattern": "^[A-Z]{2}[0-9]{2}( [0-9]{4}){2}$"},
    {"type": "string", "minLength": 2, "maxLength": 5},
    full(plate={"type": "string", "pattern": "^[A-Z]{1,3}-[0-9]{1,4}$"}, year={"type": "integer", "minimum": 1900}),
    {"type": "string", "format": "date"},
    {"type": "string", "format": "date-time"},
    {"type": "string", "format": "ipv4"},
    {"type": "string", "format": "uuid"},
    {"type": "integer", "minimum": 0, "maximum": 255},
    {"type": "integer", "exclusiveMinimum": -10, "exclusiveMaximum": 10},
    {"type": "number", "minimum": -1.5, "maximum": 2.25},
    {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 1000},
    {"type": ["string", "null"], "maxLength": 6},
    {"type": ["integer", "boolean"]},
    {"anyOf": [N, B, {"type": "null"}]},
    {"anyOf": [full(a=N), full(b={"type": "string", "maxLength": 8})]},
    {"anyOf": SHAPES},
    many({"anyOf": SHAPES}, minItems=1, maxItems=2),
    {"allOf": [obj(["a"], a=N, b=B), {"type": "object", "required": ["b"]}]},
    {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 9}]},
    TREE,
    LINKED,
    {
        "$defs": {"id": {"type": "string", "pattern": "^[0-9a-f]{4}$"}},
        **full(a={"$ref": "#/$defs/id"}, b={"$ref": "#/$defs/id"}),
    },
    {"definitions": {"p": full(x=N, y=N)}, **many({"$ref": "#/definitions/p"}, minItems=1, maxItems=2)},
    {"type": "object", "additionalProperties": N, "maxProperties": 2},
    {"type": "object", "properties": {"n": N}, "required": ["n"], "additionalProperties": B, "maxProperties": 3},
    {"type": "array", "prefixItems": [N, B, {"type": "null"}], "items": False, "minItems": 3},
    full(**{'weird "key" é': B, "日本": N, "sp ace": {"const": "<|im_end|>"}}),
]
