"""Durations as people type them: 90s, 15m, 2h, 1d, 1h30m."""

from __future__ import annotations

import re

from engine.errors import InvalidParameter

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhd])")
_MOST_CHARACTERS = 40  # what is longer would be no number of seconds either


def seconds_of(text: str) -> int:
    """Raises: InvalidParameter."""
    compact = text.replace(" ", "").lower()
    parts = _PART.findall(compact)
    if len(text) > _MOST_CHARACTERS or not parts or "".join(number + unit for number, unit in parts) != compact:
        raise InvalidParameter(f"{text[:_MOST_CHARACTERS]!r} is no duration.", "Write it as 90s, 15m, 2h, 1d or 1h30m.")
    return round(sum(float(number) * _UNITS_S[unit] for number, unit in parts))
