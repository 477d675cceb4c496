"""Filling in the middle: a prompt of what comes before and after, for vocabularies that have marks for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.errors import InvalidParameter

if TYPE_CHECKING:
    from engine.text import TextPipeline


@dataclass(frozen=True, slots=True)
class FillMarks:
    """The tokens around a prefix and a suffix. middle "": the text to fill in follows the prefix itself."""

    prefix: str
    suffix: str
    middle: str


_KNOWN = (
    FillMarks("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, and many after it
    FillMarks("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    FillMarks("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek
    FillMarks("[PREFIX]", "[SUFFIX]", ""),  # Codestral: the suffix comes first
)


def fill_in_ids(text: TextPipeline, model: str, before: str, after: str) -> list[int]:
    """Token ids of a prompt whose answer stands between before and after.

    Raises: InvalidParameter where the model's vocabulary has no marks for it
    """
    for marks in _KNOWN:
        names = [mark for mark in (marks.prefix, marks.suffix, marks.middle) if mark]
        ids = [token_id for token_id in map(text.special_id, names) if token_id is not None]
        if len(ids) < len(names):
            continue
        start, prefix, suffix = text.encode("", add_bos=True), _encode(text, before), _encode(text, after)
        if not marks.middle:
            return [*start, ids[1], *suffix, ids[0], *prefix]
        return [*start, ids[0], *prefix, ids[1], *suffix, ids[2]]
    raise InvalidParameter(
        f"suffix is not supported: the model {model} has no tokens for filling in the middle.",
        "Leave it out, or ask for a model that was made for it.",
        param="suffix",
    )


def _encode(text: TextPipeline, piece: str) -> list[int]:
    return text.encode(piece, special=True)
