"""What is refused before a compiler sees it, and what the compiler is given."""

from __future__ import annotations

import pytest

from engine.errors import InvalidParameter
from engine.text.schema_limits import LONGEST_TEXT_BYTES, check_regex, guided_schema


@pytest.mark.parametrize(
    "pattern",
    [
        r"^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$",
        r"a{1,900}b{1,900}c{1,900}d{1,900}",  # beside one another, not within
        r"(a{1,900}){1,900}",
        r"[{9999}(]{3}\{9999\}",
        r"[]{9999}]\({2}",
        "{",
        "(",
        "",
    ],
)
def test_regex_with_counts_beside_one_another_is_taken(pattern):
    check_regex(pattern)


@pytest.mark.parametrize("pattern", ["a{1001}", "a{5,20000}", "((a{900}){900}){2}", "(b|(x(a{1000}|c)){1000}y){2}"])
def test_regex_with_counts_within_counts_is_refused(pattern):
    with pytest.raises(InvalidParameter, match="count"):
        check_regex(pattern)


def test_compiler_sees_no_prose_and_no_options_of_the_caller():
    schema = {
        "title": "T",
        "description": "long " * 20_000,
        "x-guidance": {"lenient": True},
        "type": "object",
        "properties": {
            "description": {"type": "string", "description": "a name, not prose", "x-guidance": {"lenient": True}},
            "default": {"enum": [{"title": "kept"}], "default": 1},
        },
        "$defs": {"title": {"const": {"description": "kept"}}},
        "required": ["description"],
        "anyOf": [{"title": "x", "required": ["default"]}],
    }
    assert guided_schema(schema, {"lenient": False}) == {
        "type": "object",
        "properties": {"description": {"type": "string"}, "default": {"enum": [{"title": "kept"}]}},
        "$defs": {"title": {"const": {"description": "kept"}}},
        "required": ["description"],
        "anyOf": [{"required": ["default"]}],
        "x-guidance": {"lenient": False},
    }


@pytest.mark.parametrize(
    "schema",
    [
        [],
        None,
        False,
        {"enum": ["x" * LONGEST_TEXT_BYTES]},
        {"minItems": 10_001},
        {"properties": {"a": {"$ref": "http://example.org"}}},
        {"properties": {"a": {"pattern": "a{9999}"}}},
    ],
)
def test_schema_over_a_limit_is_refused(schema):
    with pytest.raises(InvalidParameter):
        guided_schema(schema, {})


def test_schema_nested_too_deep_is_refused():
    schema: dict[str, object] = {}
    for _ in range(40):
        schema = {"items": schema}
    with pytest.raises(InvalidParameter, match="nested"):
        guided_schema(schema, {})
