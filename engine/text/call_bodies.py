"""What stands between a family's marks, read into calls."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from engine.text.tool_call import Named, declared_types, json_or_none, named_call, strict_json, value_of

Tools = Sequence[Mapping[str, Any]]

DEEPSEEK_CALL = ("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>")
GLM_VALUE = re.compile(r"<arg_value>")
CODER_VALUE = re.compile(r"<parameter=[^>\s]*>")
_GLM_ARGUMENT = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>\s*", re.DOTALL)
_CODER_ARGUMENT = re.compile(r"<parameter=([^>\s]*)>(.*?)</parameter>\s*", re.DOTALL)
_CODER_CALL = re.compile(r"\s*<function=([^>\s]+)>\s*(.*?)\s*</function>\s*", re.DOTALL)
_FENCED = re.compile(r"\s*```(?:json)?\s*(.*?)\s*```\s*", re.DOTALL)


def hermes_body(text: str) -> list[Named] | None:
    """One {"name": ..., "arguments": {...}}."""
    call = named_call(json_or_none(text))
    return None if call is None else [call]


def mistral_body(text: str) -> list[Named] | None:
    """A list of such objects, or name[ARGS]{...} with perhaps [CALL_ID]... before [ARGS]."""
    if text.lstrip().startswith("["):
        values = json_or_none(text)
        calls = [named_call(value) for value in values] if isinstance(values, list) else []
        found = [call for call in calls if call is not None]
        return found if len(found) == len(calls) else None
    head, brace, rest = text.partition("{")
    name = head.replace("[ARGS]", "").partition("[CALL_ID]")[0].strip()
    arguments = json_or_none(brace + rest)
    return [(name, arguments)] if name and isinstance(arguments, dict) else None


def deepseek_body(text: str) -> list[Named] | None:
    """Calls between marks of their own: function, name and fenced JSON (V3, R1), or name and JSON (V3.1)."""
    opening, separator, closing = DEEPSEEK_CALL
    calls: list[Named] = []
    pieces = text.split(opening)
    if pieces[0].strip():
        return None
    for piece in pieces[1:]:
        head, _, rest = piece.partition(closing)[0].partition(separator)
        name, _, fenced = rest.partition("\n")
        match = _FENCED.fullmatch(fenced)
        arguments = json_or_none(match[1] if match else rest)
        name = name.strip() if match else head.strip()
        if not name or not isinstance(arguments, dict):
            return None
        calls.append((name, arguments))
    return calls or None


def glm_body(text: str, tools: Tools) -> list[Named] | None:
    """A name, then pairs of <arg_key> and <arg_value>."""
    name, mark, rest = text.partition("<arg_key>")
    name = name.strip()
    pairs = _pairs(_GLM_ARGUMENT, mark + rest)
    if not name or re.search(r"[\s<>{}]", name) or pairs is None:
        return None
    types = declared_types(tools, name)
    return [(name, {key.strip(): value_of(value, types.get(key.strip())) for key, value in pairs})]


def coder_body(text: str, tools: Tools) -> list[Named] | None:
    """<function=name> and in it <parameter=key> value </parameter>: Qwen3-Coder."""
    match = _CODER_CALL.fullmatch(text)
    pairs = _pairs(_CODER_ARGUMENT, match[2] + "\n") if match else None
    if match is None or pairs is None:
        return None
    types = declared_types(tools, match[1])
    arguments = {}
    for key, value in pairs:
        value = value.removeprefix("\n").removesuffix("\n")
        arguments[key] = value_of(value, types.get(key))
    return [(match[1], arguments)]


def llama3_body(text: str) -> list[Named] | None:
    """The whole answer: objects joined by semicolons."""
    decoder, at = json.JSONDecoder(), 0
    calls: list[Named] = []
    while at < len(text):
        at += len(text[at:]) - len(text[at:].lstrip("; \n\t"))
        if at == len(text):
            break
        try:
            _, end = decoder.raw_decode(text, at)
            call = named_call(strict_json(text[at:end]))
        except (ValueError, RecursionError):
            return None
        if call is None:
            return None
        calls.append(call)
        at = end
    return calls or None


def _pairs(pattern: re.Pattern[str], text: str) -> list[tuple[str, str]] | None:
    """Every pair of groups; None when something else stands between them."""
    found, at = [], 0
    text = text.strip() + "\n" if text.strip() else ""
    while at < len(text):
        match = pattern.match(text, at)
        if match is None:
            return None
        found.append((match[1], match[2]))
        at = match.end()
    return found
