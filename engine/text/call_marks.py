"""MarkedCallParser: calls between an opening and a closing mark, found as the text comes.

What differs between families is one `CallMarks`: the marks, where a body ends, and what a body says.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from engine.text.held_text import held_length
from engine.text.tool_call import Named, ToolCall, numbered


class BodyEnd(Protocol):
    """Looks for a body's end; asked again with the same body, longer. Owner: one body."""

    def find(self, held: str) -> tuple[int, int] | None:
        """(end of the body, beginning of what follows); None while it is not there."""
        ...


@dataclass(frozen=True, slots=True)
class CallMarks:
    opening: str
    end: Callable[[], BodyEnd]
    read: Callable[[str], list[Named] | None]  # a body's calls; None when it is none


class MarkedCallParser:
    """See ToolParser."""

    def __init__(self, marks: CallMarks) -> None:
        self._marks = marks
        self._held = ""
        self._end: BodyEnd | None = None  # while inside: held begins after an opening mark
        self._gap = ""  # white space before the opening mark: shown only if no call follows
        self._after_call = False  # nothing but white space since a call
        self._calls = 0

    def feed(self, text: str) -> list[str | ToolCall]:
        self._held += text
        out: list[str | ToolCall] = []
        while self._inside_step(out, self._end) if self._end is not None else self._outside_step(out):
            pass
        return out

    def flush(self) -> list[str | ToolCall]:
        """The end of the stream: a call that lacks only its closing mark counts."""
        held, self._held = self._held, ""
        out: list[str | ToolCall] = []
        if self._end is not None:
            self._end = None
            self._calls_or_text(out, held, self._gap + self._marks.opening + held)
        elif held and not (self._after_call and held.isspace()):
            out.append(held)
        return out

    def _outside_step(self, out: list[str | ToolCall]) -> bool:
        if self._after_call:
            self._held = self._held.lstrip()
        opening = self._marks.opening
        before, mark, after = self._held.partition(opening)
        if not mark:
            safe = before[: len(before) - held_length(before, opening)].rstrip()
            self._held = before[len(safe) :]
            self._text(out, safe)
            return False
        shown = before.rstrip()
        self._gap = before[len(shown) :]
        self._held, self._end = after, self._marks.end()
        self._text(out, shown)
        return True

    def _inside_step(self, out: list[str | ToolCall], end: BodyEnd) -> bool:
        found = end.find(self._held)
        if found is None:
            return False
        body, whole = self._held[: found[0]], self._held[: found[1]]
        self._held, self._end = self._held[found[1] :], None
        self._calls_or_text(out, body, self._gap + self._marks.opening + whole)
        return True

    def _calls_or_text(self, out: list[str | ToolCall], body: str, text: str) -> None:
        calls = self._marks.read(body)
        if not calls:
            self._text(out, text)
            return
        for call in calls:
            out.append(numbered(self._calls, call))
            self._calls += 1
        self._after_call = True

    def _text(self, out: list[str | ToolCall], text: str) -> None:
        if text:
            self._after_call = False
            out.append(text)


class AfterJson:
    """The body ends with a mark, one within a JSON string not counted; each character is looked at once."""

    def __init__(self, closing: str) -> None:
        self._closing = closing
        self._at = 0  # known to hold no end before it
        self._quoted = False  # the scan stands in a JSON string

    def find(self, held: str) -> tuple[int, int] | None:
        at, closing = self._at, self._closing
        while at < len(held):
            character = held[at]
            if self._quoted and character == "\\":
                if at + 1 >= len(held):
                    break
                at += 2
                continue
            if character == '"':
                self._quoted = not self._quoted
            elif character == closing[0] and not self._quoted:
                if held.startswith(closing, at):
                    return at, at + len(closing)
                if closing.startswith(held[at:]):
                    break
            at += 1
        self._at = at
        return None


class AfterValues:
    """The body ends with a mark, one within a value not counted; a value stands as it is between marks of its own."""

    def __init__(self, closing: str, value_opening: re.Pattern[str], value_closing: str) -> None:
        self._closing, self._value_opening, self._value_closing = closing, value_opening, value_closing
        self._at = 0
        self._inside = False

    def find(self, held: str) -> tuple[int, int] | None:
        while True:
            if self._inside:
                end = held.find(self._value_closing, self._at)
                if end < 0:
                    self._at = max(self._at, len(held) - len(self._value_closing) + 1)
                    return None
                self._at, self._inside = end + len(self._value_closing), False
                continue
            closing = held.find(self._closing, self._at)
            opening = self._value_opening.search(held, self._at)
            if opening is not None and (closing < 0 or opening.start() < closing):
                self._at, self._inside = opening.end(), True
                continue
            return None if closing < 0 else (closing, closing + len(self._closing))


class JsonItself:
    """The body ends where its first JSON object does, or an array that it begins with."""

    def __init__(self) -> None:
        self._at = 0
        self._depth = 0
        self._quoted = False

    def find(self, held: str) -> tuple[int, int] | None:
        at = self._at
        while at < len(held):
            character = held[at]
            if self._quoted:
                if character == "\\":
                    if at + 1 >= len(held):
                        break
                    at += 1
                elif character == '"':
                    self._quoted = False
            elif character == '"' and self._depth:
                self._quoted = True
            elif character == "{" or (character == "[" and (self._depth or not held[:at].strip())):
                self._depth += 1
            elif character in "}]" and self._depth:
                self._depth -= 1
                if self._depth == 0:
                    return at + 1, at + 1
            at += 1
        self._at = at
        return None
