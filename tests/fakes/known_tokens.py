"""A tokenizer's stand-in that gives the same tokens for any text, for models that have none."""

from __future__ import annotations

from dataclasses import dataclass

TOKENS = [7, 50, 3, 3, 91, 22, 8, 64, 12, 70] * 20  # more than the small model can read at once


@dataclass(frozen=True, slots=True)
class KnownTokens:
    tokens: list[int]

    def encode(self, text: str) -> list[int]:
        return self.tokens
