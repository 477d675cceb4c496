"""JSON that tools print: with log lines around it, cut in the middle, or with keys that change by version."""

from __future__ import annotations

import json
import re
from typing import Any

_MEMBER = re.compile(r'"([^"\\\n]{1,64})"\s*:\s*\{')
_DECODER = json.JSONDecoder()


def load(text: str) -> Any | None:
    """The first JSON object or array in `text`, whatever stands before and after it; None if there is none."""
    for found in re.finditer(r"[{\[]", text):
        try:
            value, _ = _DECODER.raw_decode(text, found.start())
        except (ValueError, RecursionError):
            if found.start() > 20_000:
                return None
            continue
        if value not in ({}, []) and not _is_log_prefix(text, found.start()):
            return value
    return None


def _is_log_prefix(text: str, start: int) -> bool:
    """True for the bracket that opens a log line such as `[0] started` in front of the real thing."""
    line_start = text.rfind("\n", 0, start) + 1
    return bool(re.match(r"\[[\w .:-]*\][ \t]*\S", text[line_start:])) if text[start] == "[" else False


def members(text: str) -> dict[str, dict[str, Any]]:
    """Every complete `"name": {...}` in a damaged object; what is broken is left out."""
    found: dict[str, dict[str, Any]] = {}
    position = 0
    while match := _MEMBER.search(text, position):
        try:
            value, position = _DECODER.raw_decode(text, match.end() - 1)
        except (ValueError, RecursionError):
            position = match.end()
            continue
        if isinstance(value, dict):
            found.setdefault(match.group(1), value)
    return found


def items(text: str) -> list[dict[str, Any]]:
    """Every complete object in a damaged array of objects."""
    found: list[dict[str, Any]] = []
    position = text.find("{")
    while position != -1:
        try:
            value, position = _DECODER.raw_decode(text, position)
        except (ValueError, RecursionError):
            position += 1
        else:
            if isinstance(value, dict):
                found.append(value)
        position = text.find("{", position)
    return found


def text_of(value: Any) -> str | None:
    """A JSON scalar as text; containers and null are None."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, str | int | float) else None
