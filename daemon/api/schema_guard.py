"""Cheap checks of a client's JSON schema or grammar before it reaches a worker, which compiles it.

What is refused here is a bomb or a mistake that needs no compiler to see; a keyword that the compiler does not know is
refused by the worker, before the first token.
"""

from __future__ import annotations

from typing import Any

import msgspec

from engine.errors import InvalidParameter
from engine.messages import Grammar, GrammarKind
from engine.text.schema_limits import DEEPEST, check_regex, check_text, guided_schema

MAX_CHOICES = 4096


def schema_grammar(schema: Any, param: str) -> Grammar:
    """Raises: InvalidParameter naming param"""
    return Grammar(GrammarKind.JSON_SCHEMA, check_schema(schema, param))


def check_schema(schema: Any, param: str) -> str:
    """The schema as JSON text. Raises: InvalidParameter naming param"""
    guided_schema(schema, {}, param=param)
    _check_references(schema, schema, param)
    return msgspec.json.encode(schema).decode()


def check_shown_schema(schema: dict[str, Any], param: str) -> None:
    """A schema that the model reads and nothing is kept to: its size and depth alone. Raises: InvalidParameter"""
    check_text(msgspec.json.encode(schema).decode(), "The schema", param=param)
    deepest = _depth(schema)
    if deepest > DEEPEST:
        raise InvalidParameter(
            f"The schema is nested {deepest} deep; at most {DEEPEST} are allowed.", "Flatten it.", param=param
        )


def _depth(node: Any) -> int:
    """The body itself is no deeper than JSON may be here."""
    if isinstance(node, dict):
        return 1 + max(map(_depth, node.values()), default=0)
    if isinstance(node, list):
        return 1 + max(map(_depth, node), default=0)
    return 0


def regex_grammar(pattern: str, param: str) -> Grammar:
    """Raises: InvalidParameter naming param"""
    check_regex(pattern, param=param)
    return Grammar(GrammarKind.REGEX, pattern)


def choice_grammar(choices: list[str], param: str) -> Grammar:
    """Raises: InvalidParameter naming param"""
    if not 1 <= len(choices) <= MAX_CHOICES:
        raise InvalidParameter(f"{param} has {len(choices)} entries; 1 to {MAX_CHOICES:,} are allowed.", param=param)
    if not all(choices):
        raise InvalidParameter(f"{param} holds an empty text.", "Leave it out.", param=param)
    text = msgspec.json.encode(choices).decode()
    check_text(text, "The list of choices", param=param)
    return Grammar(GrammarKind.CHOICE, text)


def lark_grammar(text: str, param: str) -> Grammar:
    """Raises: InvalidParameter naming param"""
    if not text.strip():
        raise InvalidParameter(f"{param} is empty.", param=param)
    check_text(text, "The grammar", param=param)
    return Grammar(GrammarKind.LARK, text)


def _check_references(node: Any, root: Any, param: str) -> None:
    """The depth is bounded by now."""
    if isinstance(node, list):
        for item in node:
            _check_references(item, root, param)
    elif isinstance(node, dict):
        for key, value in node.items():
            if key == "$ref" and isinstance(value, str):
                _check_reference(value, root, param)
            elif key not in ("const", "enum", "default", "examples"):  # plain values, no schemas
                _check_references(value, root, param)


def _check_reference(reference: str, root: Any, param: str) -> None:
    node = root
    for part in reference[1:].split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict) and name in node:
            node = node[name]
        elif isinstance(node, list) and name.isdigit() and int(name) < len(node):
            node = node[int(name)]
        else:
            raise InvalidParameter(f"{param} refers to {reference[:128]!r}, which is not in it.", param=param)
