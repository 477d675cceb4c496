"""Typed, bounded reading of the values a checkpoint states about itself, from config.json or GGUF metadata."""

from __future__ import annotations

import math
from collections.abc import Mapping

from engine.errors import UnsupportedFormat

MAX_LAYERS = 1 << 10
MAX_WIDTH = 1 << 20  # of any hidden, intermediate or head dimension
MAX_VOCABULARY = 1 << 22
MAX_CONTEXT = 1 << 27


class Fields:
    """Values by name; a wrong type or an absurd size is refused with the name, the value and what is needed."""

    def __init__(self, values: Mapping[str, object], source: str, spelled: Mapping[str, str] | None = None) -> None:
        self.values = values
        self.source = source  # what a message calls the place, e.g. "config.json"
        self._spelled = spelled or {}  # names that the source spells otherwise
        self.gguf = spelled is not None  # config.json's names over a GGUF header

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None

    def refuse(self, name: str, need: str) -> UnsupportedFormat:
        found = repr(self.values.get(name))
        shown = found if len(found) <= 80 else found[:77] + "..."
        key = self._spelled.get(name, name)
        if self.values.get(name) is None:
            return UnsupportedFormat(f"{self.source} does not state {key}; {need} is needed.", "Convert it again.")
        return UnsupportedFormat(f"{self.source} states {key} = {shown}; {need} is needed.", "Convert it again.")

    def whole(self, name: str, low: int, high: int, default: int | None = None) -> int:
        value = self.values.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, list) and value and all(item == value[0] for item in value):
            value = value[0]  # GGUF may state a value for each layer
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.refuse(name, f"{low:,}" if low == high else f"a whole number from {low:,} to {high:,}")
        return value

    def number(self, name: str, low: float, high: float, default: float | None = None) -> float:
        value = self.values.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self.refuse(name, f"a number from {low:g} to {high:g}")
        if not low <= value <= high:
            raise self.refuse(name, f"a number from {low:g} to {high:g}")
        return float(value)

    def truth(self, name: str, default: bool) -> bool:
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.refuse(name, "true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        value = self.values.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            raise self.refuse(name, "a text")
        return value

    def one_of(self, name: str, allowed: tuple[str, ...], default: str) -> str:
        value = self.text(name, default)
        if value not in allowed:
            raise self.refuse(name, f"one of {', '.join(allowed)}")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        value = self.values.get(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.refuse(name, "a list of texts")
        return tuple(value)

    def wholes(self, name: str, low: int, high: int) -> tuple[int, ...]:
        """A list of whole numbers; () when none is stated."""
        value = self.values.get(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(
            isinstance(item, int) and not isinstance(item, bool) and low <= item <= high for item in value
        ):
            raise self.refuse(name, f"a list of whole numbers from {low:,} to {high:,}")
        return tuple(value)

    def numbers(self, name: str, count: int, low: float, high: float) -> tuple[float, ...]:
        """A list of exactly so many numbers."""
        value = self.values.get(name)
        if (
            not isinstance(value, list)
            or len(value) != count
            or not all(
                isinstance(item, int | float) and not isinstance(item, bool) and low <= item <= high for item in value
            )
        ):
            raise self.refuse(name, f"a list of {count:,} numbers from {low:g} to {high:g}")
        return tuple(float(item) for item in value)

    def first_stated(self, *names: str) -> str:
        """The first of several names for one thing that is stated; the first of all if none is."""
        return next((name for name in names if name in self), names[0])

    def section(self, name: str) -> Fields | None:
        """A nested object; None when it is not stated."""
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.refuse(name, "an object")
        return Fields(value, f"{self.source.rstrip(',')}, {name},")

    def token_ids(self, name: str, vocab_size: int) -> tuple[int, ...]:
        """One id or a list of them; () when none is stated."""
        value = self.values.get(name)
        if value is None:
            return ()
        found = value if isinstance(value, list) else [value]
        if not all(isinstance(i, int) and not isinstance(i, bool) and 0 <= i < vocab_size for i in found):
            raise self.refuse(name, f"token ids from 0 to {vocab_size - 1:,}")
        return tuple(dict.fromkeys(found))
