"""OutputParser: what a model wrote, as thinking, content and tool calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

from engine.text.reasoning import ReasoningSplitter
from engine.text.tool_call import ToolCall, ToolParser


@dataclass(frozen=True, slots=True)
class Content:
    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    text: str


Part: TypeAlias = "Content | Reasoning | ToolCall"


class OutputParser(Protocol):
    """Text in, parts out, in order. However the text is split over calls, the parts joined are the same.

    The text must still hold the tokens of kept_token_ids: give them to IncrementalDetokenizer(keep=...). Other special
    tokens stay out of it. Owner: one stream; not for several threads.
    """

    kept_token_ids: frozenset[int]

    def feed(self, text: str) -> list[Part]: ...

    def flush(self) -> list[Part]: ...


class MarkedOutputParser:
    """Thinking between two marks first, then content with calls in it; either may be absent."""

    def __init__(
        self,
        reasoning: ReasoningSplitter | None,
        tools: ToolParser | None,
        kept_token_ids: frozenset[int] = frozenset(),
    ) -> None:
        self.kept_token_ids = kept_token_ids
        self._reasoning = reasoning
        self._tools = tools

    def feed(self, text: str) -> list[Part]:
        if self._reasoning is None:
            return self._content(text)
        split = self._reasoning.feed(text)
        return [*_reasoning(split.reasoning), *self._content(split.content)]

    def flush(self) -> list[Part]:
        parts: list[Part] = []
        if self._reasoning is not None:
            split = self._reasoning.flush()
            parts += [*_reasoning(split.reasoning), *self._content(split.content)]
        if self._tools is not None:
            parts += _parts(self._tools.flush())
        return parts

    def _content(self, text: str) -> list[Part]:
        if not text:
            return []
        return [Content(text)] if self._tools is None else _parts(self._tools.feed(text))


def _reasoning(text: str) -> list[Part]:
    return [Reasoning(text)] if text else []


def _parts(found: list[str | ToolCall]) -> list[Part]:
    return [Content(part) if isinstance(part, str) else part for part in found]
