"""ReasoningSplitter: a model's thinking apart from its answer, as the text comes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from engine.text.held_text import held_length


class _Stage(StrEnum):
    START = "start"  # nothing but white space so far
    THINKING = "thinking"
    GAP = "gap"  # after the end mark, before the answer's first character
    ANSWER = "answer"


@dataclass(frozen=True, slots=True)
class Split:
    """New text of each kind."""

    reasoning: str = ""
    content: str = ""


class ReasoningSplitter:
    """Splits `<think>...</think>answer`; the line breaks around the marks belong to neither part.

    Thinking is recognised only at the beginning, so that an answer may speak of the marks. begins_inside is for
    templates that write the opening mark into the prompt. However the text is split over calls, the parts joined are
    the same. Owner: one stream; not for several threads.
    """

    def __init__(self, opening: str = "<think>", closing: str = "</think>", *, begins_inside: bool = False) -> None:
        self._opening, self._closing = opening, closing
        self._stage = _Stage.THINKING if begins_inside else _Stage.START
        self._held = ""
        self._thought = False  # some reasoning was given out

    def feed(self, text: str) -> Split:
        self._held += text
        reasoning = ""
        if self._stage is _Stage.START:
            self._look_for_opening()
        if self._stage is _Stage.THINKING:
            reasoning = self._think()
        return Split(reasoning, self._answer())

    def flush(self) -> Split:
        """The end of the stream: what was held back goes where it stands."""
        held, self._held = self._held, ""
        if self._stage is _Stage.THINKING:
            return Split(reasoning=held.rstrip("\n") if self._thought else held.strip("\n"))
        return Split(content="" if self._stage is _Stage.GAP else held)

    def _look_for_opening(self) -> None:
        begun = self._held.lstrip()
        if begun.startswith(self._opening):
            self._held = begun[len(self._opening) :]
            self._stage = _Stage.THINKING
        elif not self._opening.startswith(begun):
            self._stage = _Stage.ANSWER

    def _think(self) -> str:
        if not self._thought:
            self._held = self._held.lstrip("\n")
        before, mark, after = self._held.partition(self._closing)
        if mark:
            self._stage, self._held = _Stage.GAP, after
            return before.rstrip("\n")
        safe = before[: len(before) - held_length(before, self._closing)].rstrip("\n")
        self._held = before[len(safe) :]
        self._thought = self._thought or bool(safe)
        return safe

    def _answer(self) -> str:
        if self._stage is _Stage.GAP:
            self._held = self._held.lstrip("\n")
            if self._held:
                self._stage = _Stage.ANSWER
        if self._stage is not _Stage.ANSWER:
            return ""
        text, self._held = self._held, ""
        return text
