"""What a JSON schema may cost before anyone compiles it, and the schema as the grammar compiler is to read it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from engine.errors import InvalidParameter

LONGEST_TEXT_BYTES = 64 * 1024
DEEPEST = 32
MOST_REPEATS = 1_000  # in a regular expression: each copy is states of an automaton
MOST_ITEMS = 10_000  # that a schema may demand of one array, object or string
_REPEAT = re.compile(r"\{(\d+)?,?(\d+)?\}")
_COUNTS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")

_READ = frozenset(
    ("title", "description", "examples", "default", "deprecated", "readOnly", "writeOnly", "$comment", "x-guidance")
)
_VALUES = frozenset(("enum", "const", "required"))  # hold no schemas
_NAMED = frozenset(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"))

# Spaces and line breaks as people write them, never without end.
JSON_OPTIONS: Mapping[str, Any] = {
    "whitespace_flexible": True,
    "whitespace_pattern": r"[\x20\x0A\x0D\x09]{0,20}",
    "coerce_one_of": False,
    "lenient": False,
}
# One spelling only: what the model has seen in its prompts.
CALL_OPTIONS: Mapping[str, Any] = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "coerce_one_of": True,
}


def guided_schema(schema: object, options: Mapping[str, Any], *, param: str = "response_format") -> dict[str, Any]:
    """A schema within the limits, with the compiler's options in it instead of any the caller wrote.

    Raises: InvalidParameter
    """
    if schema is True:
        schema = {}
    if not isinstance(schema, Mapping):
        raise InvalidParameter("The JSON schema is no object.", "Send a schema such as {...}.", param=param)
    _check_value(schema, 0, param)
    bare: dict[str, Any] = _bare(schema)
    _check_size(json.dumps(bare, ensure_ascii=False), "The JSON schema", param)
    return {**bare, "x-guidance": dict(options)}


def check_regex(pattern: str, *, param: str = "response_format") -> None:
    """Raises: InvalidParameter over a limit."""
    _check_size(pattern, "The regular expression", param)
    if pattern.count("(") > 20 * DEEPEST:
        raise InvalidParameter(
            f"The regular expression has {pattern.count('(')} groups; {20 * DEEPEST} are taken.", param=param
        )
    copies = _copies(pattern)
    if copies > MOST_REPEATS**2:
        raise InvalidParameter(
            f"The regular expression repeats something {copies:,} times, counts within counts multiplied; up to "
            f"{MOST_REPEATS**2:,} are taken.",
            "Use * or +, or smaller counts.",
            param=param,
        )


def _copies(pattern: str) -> int:
    """The most copies that any part of a pattern is written out to: its count, times those of the groups around it.

    Raises: InvalidParameter for a single count over the limit
    """
    open_groups, last, at = [1], 1, 0
    while at < len(pattern):
        character = pattern[at]
        count = _REPEAT.match(pattern, at) if character == "{" else None
        if count is not None:
            times = max(int(count[1] or 0), int(count[2] or 0), 1)
            if times > MOST_REPEATS:
                raise InvalidParameter(
                    f"The regular expression has the count {count[0]}; {MOST_REPEATS:,} are taken.",
                    "Use * or +, or a smaller count.",
                    param="response_format",
                )
            last *= times
            open_groups[-1] = max(open_groups[-1], last)
            at = count.end()
            continue
        last = 1
        if character == "(":
            open_groups.append(1)
        elif character == ")" and len(open_groups) > 1:
            last = open_groups.pop()
            open_groups[-1] = max(open_groups[-1], last)
        at = _class_end(pattern, at) if character == "[" else at + (2 if character == "\\" else 1)
    return max(open_groups)


def _class_end(pattern: str, at: int) -> int:
    """Where what follows a character class begins."""
    at += 2 if pattern[at + 1 : at + 2] in ("]", "\\") else 1
    while at < len(pattern) and pattern[at] != "]":
        at += 2 if pattern[at] == "\\" else 1
    return at + 1


def check_text(text: str, what: str, *, param: str = "response_format") -> None:
    """Raises: InvalidParameter for a text longer than a grammar may be."""
    _check_size(text, what, param)


def _check_size(text: str, what: str, param: str) -> None:
    size_bytes = len(text.encode("utf-8", "surrogatepass"))
    if size_bytes > LONGEST_TEXT_BYTES:
        raise InvalidParameter(
            f"{what} has {size_bytes:,} bytes; the limit is {LONGEST_TEXT_BYTES:,}.", "Make it smaller.", param=param
        )


def _check_value(value: Any, depth: int, param: str) -> None:
    if depth > DEEPEST:
        raise InvalidParameter(f"The JSON schema is nested more than {DEEPEST} deep.", "Flatten it.", param=param)
    if isinstance(value, Mapping):
        pattern = value.get("pattern")
        if isinstance(pattern, str):
            check_regex(pattern, param=param)
        for key in _COUNTS:
            count = value.get(key)
            if isinstance(count, int | float) and count > MOST_ITEMS:
                raise InvalidParameter(
                    f"{key} is {count:,} in the JSON schema; up to {MOST_ITEMS:,} are taken.", param=param
                )
        reference = value.get("$ref")
        if isinstance(reference, str) and not reference.startswith("#"):
            raise InvalidParameter(
                f"The JSON schema refers to {reference!r}; only references within it (#/...) are followed.",
                "Put what it names under $defs.",
                param=param,
            )
        for item in value.values():
            _check_value(item, depth + 1, param)
    elif isinstance(value, list):
        for item in value:
            _check_value(item, depth + 1, param)


def _bare(value: Any, *, names: bool = False) -> Any:
    """A schema without prose, and without options for the compiler. names: the keys are the caller's."""
    if isinstance(value, Mapping):
        if names:
            return {key: _bare(item) for key, item in value.items()}
        return {
            key: item if key in _VALUES else _bare(item, names=key in _NAMED)
            for key, item in value.items()
            if key not in _READ
        }
    return [_bare(item) for item in value] if isinstance(value, list) else value


def json_schema(text: str, *, param: str = "response_format") -> Any:
    """A schema's JSON text, read. Raises: InvalidParameter."""
    check_text(text, "The JSON schema", param=param)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidParameter(f"The JSON schema is no JSON: {error}.", param=param) from error
