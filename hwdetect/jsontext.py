"""JSON that tools print: with log lines around it, cut in the middle, or with keys that change by version."""

from __future__ import annotations

import json
import re
from typing import Any

_MEMBER = re.compile(r'"([^"\\\n]{1,64})"\s*:\s*\{')
# `[INFO x] words` and `[0] words` in front of the real thing
_LOG_PREFIX = re.compile(r"\[[^\]\[{\"]*\](?!\s*[,\]]|\s*$)")
_DECODER = json.JSONDecoder()


def load(text: str) -> Any | None:
    """The JSON object or array in `text`, whatever lines stand around it; None if it is damaged or not there."""
    position = 0
    for line in text.splitlines(keepends=True):
        start = position + len(line) - len(line.lstrip())
        if line.strip()[:1] in ("{", "[") and not _LOG_PREFIX.match(line.strip()):
            try:
                value, _ = _DECODER.raw_decode(text, start)
            except (ValueError, RecursionError):
                return None
            return value
        position += len(line)
    return None


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
