"""Make text from outside harmless to a terminal: done once, where answers come in."""

from __future__ import annotations

import re

# C0 and C1 controls (escape sequences begin with them) and the marks that reorder text on screen. A line break is
# among them: what is shown in one row has to stay there.
_HOSTILE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def clean(text: str) -> str:
    """The text with every control and reordering character replaced."""
    return _HOSTILE.sub(REPLACEMENT, text)


def clean_json(value: object) -> object:
    """The same document with every string in it cleaned, keys included."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean(str(key)): clean_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [clean_json(item) for item in value]
    return value
