"""Text from outside on its way to a terminal: what would move its cursor or change its colours is spelled out."""

from __future__ import annotations


def printable(text: str, keep: str = "") -> str:
    """Every character that cannot be seen as an escape, but those of keep."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in keep else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
