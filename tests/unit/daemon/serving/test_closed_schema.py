"""Closing a schema: what fits the closed one fits the open one, and nothing becomes impossible."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.serving.closed_schema import closed_schema

INT = {"type": "integer"}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": "object", "properties": {"a": INT}, "additionalProperties": True},
        {"type": "object", "properties": {"a": INT}, "additionalProperties": INT},
        {"allOf": [{"properties": {"a": INT}}, {"properties": {"b": INT}}]},
        {"properties": {"a": INT}, "required": ["a", "b"]},
        {"properties": {"a": INT}, "anyOf": [{"required": ["b"]}]},
        {"properties": {"a": INT}, "minProperties": 2},
        {"oneOf": [{"properties": {"a": INT}}, INT]},
        {"properties": {"a": {"not": {"properties": {"b": INT}}}}},
        {"enum": [{"properties": {"a": 1}}]},
        True,
    ],
)
def test_schema_that_must_stay_open_stays_as_it_is(schema: Any) -> None:
    assert closed_schema(schema) == schema


def test_objects_at_every_depth_are_closed() -> None:
    inner = {"type": "object", "properties": {"x": INT}}
    shut = {**inner, "additionalProperties": False}
    schema = {"properties": {"properties": inner, "list": {"items": inner}}, "$defs": {"d": inner}}
    assert closed_schema(schema) == {
        "properties": {"properties": shut, "list": {"items": shut}},
        "$defs": {"d": shut},
        "additionalProperties": False,
    }


SCHEMAS: Any = st.recursive(
    st.sampled_from([INT, {"type": "string"}, {"enum": [1, "a"]}]),
    lambda inner: st.one_of(
        st.builds(lambda a: {"type": "array", "items": a}, inner),
        st.builds(lambda a, b: {"anyOf": [a, b]}, inner, inner),
        st.builds(lambda a, b: {"type": "object", "properties": {"a": a, "b": b}, "required": ["a"]}, inner, inner),
    ),
    max_leaves=6,
)
VALUES = st.recursive(
    st.sampled_from([1, "a", None]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["a", "b", "c"]), inner, max_size=3),
    max_leaves=6,
)


@given(SCHEMAS, VALUES)
def test_what_fits_the_closed_schema_fits_the_open_one(schema: Any, value: Any) -> None:
    if jsonschema.Draft202012Validator(closed_schema(schema)).is_valid(value):
        assert jsonschema.Draft202012Validator(schema).is_valid(value)
