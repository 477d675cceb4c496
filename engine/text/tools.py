"""Tool calls in a model's text: found as it comes, whole calls only, nothing lost when one is malformed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from engine.text.held_text import held_length


class ToolFormat(StrEnum):
    """How a family writes its calls."""

    HERMES = "hermes"  # <tool_call>{"name": ..., "arguments": {...}}</tool_call>: Hermes, Qwen, SmolLM
    LLAMA3_JSON = "llama3_json"  # the whole answer is {"name": ..., "parameters": {...}}, several joined by ";"


@dataclass(frozen=True, slots=True)
class ToolCall:
    index: int
    name: str
    arguments: str  # JSON text of an object


class ToolParser(Protocol):
    """Text in, text and calls out, in order. However the text is split over calls, what comes out joined is the same.

    A call comes whole, when it is complete. What looks like one and is none, or is cut off, comes as text. White space
    beside calls is left out. Owner: one stream; not for several threads.
    """

    def feed(self, text: str) -> list[str | ToolCall]: ...

    def flush(self) -> list[str | ToolCall]: ...


def tool_parser(form: ToolFormat) -> ToolParser:
    return HermesParser() if form is ToolFormat.HERMES else Llama3JsonParser()


def tool_format_of(template_text: str) -> ToolFormat | None:
    """The format a chat template asks its model for; None when it does not speak of tools in one that is known."""
    if "<tool_call>" in template_text:
        return ToolFormat.HERMES
    if '"parameters"' in template_text and '"name"' in template_text:
        return ToolFormat.LLAMA3_JSON
    return None


def _call(index: int, text: str) -> ToolCall | None:
    """A call from its JSON text; None when it is none."""
    try:
        value = json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        return None
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):  # some models write the object as text
        try:
            arguments = json.loads(arguments)
        except (json.JSONDecodeError, RecursionError):
            return None
    if not isinstance(arguments, dict):
        return None
    return ToolCall(index, value["name"], json.dumps(arguments, ensure_ascii=False))


class HermesParser:
    OPENING, CLOSING = "<tool_call>", "</tool_call>"

    def __init__(self) -> None:
        self._held = ""
        self._inside = False  # held begins after an opening mark
        self._scanned = 0  # of held while inside: known to hold no end
        self._quoted = False  # the scan stands in a JSON string
        self._gap = ""  # white space before the opening mark: shown only if no call follows
        self._after_call = False  # nothing but white space since a call
        self._calls = 0

    def feed(self, text: str) -> list[str | ToolCall]:
        self._held += text
        out: list[str | ToolCall] = []
        while self._inside_step(out) if self._inside else self._outside_step(out):
            pass
        return out

    def flush(self) -> list[str | ToolCall]:
        """The end of the stream: a call that lacks only its closing mark counts."""
        held, self._held = self._held, ""
        if self._inside:
            self._inside = False
            call = _call(self._calls, held)
            if call is not None:
                self._calls += 1
                return [call]
            return [self._gap + self.OPENING + held]
        return [held] if held and not (self._after_call and held.isspace()) else []

    def _outside_step(self, out: list[str | ToolCall]) -> bool:
        if self._after_call:
            self._held = self._held.lstrip()
        before, mark, after = self._held.partition(self.OPENING)
        if not mark:
            safe = before[: len(before) - held_length(before, self.OPENING)].rstrip()
            self._held = before[len(safe) :]
            self._text(out, safe)
            return False
        shown = before.rstrip()
        self._gap = before[len(shown) :]
        self._held, self._inside, self._scanned, self._quoted = after, True, 0, False
        self._text(out, shown)
        return True

    def _inside_step(self, out: list[str | ToolCall]) -> bool:
        end = self._find_end()
        if end is None:
            return False
        body, self._held = self._held[:end], self._held[end + len(self.CLOSING) :]
        self._inside = False
        call = _call(self._calls, body)
        if call is None:
            self._text(out, self._gap + self.OPENING + body + self.CLOSING)
        else:
            self._calls += 1
            self._after_call = True
            out.append(call)
        return True

    def _find_end(self) -> int | None:
        """Where the closing mark begins, one within a JSON string not counted; each character is looked at once."""
        held, at = self._held, self._scanned
        while at < len(held):
            character = held[at]
            if self._quoted and character == "\\":
                if at + 1 >= len(held):
                    break
                at += 2
                continue
            if character == '"':
                self._quoted = not self._quoted
            elif character == "<" and not self._quoted:
                if held.startswith(self.CLOSING, at):
                    return at
                if self.CLOSING.startswith(held[at:]):
                    break
            at += 1
        self._scanned = at
        return None

    def _text(self, out: list[str | ToolCall], text: str) -> None:
        if text:
            self._after_call = False
            out.append(text)


class Llama3JsonParser:
    def __init__(self) -> None:
        self._held = ""
        self._plain = False  # the answer does not begin as a call

    def feed(self, text: str) -> list[str | ToolCall]:
        if self._plain:
            return [text] if text else []
        self._held += text
        begun = self._held.lstrip()
        if not begun or begun.startswith("{"):
            return []
        self._plain = True
        held, self._held = self._held, ""
        return [held]

    def flush(self) -> list[str | ToolCall]:
        held, self._held = self._held, ""
        calls: list[str | ToolCall] = []
        decoder, at = json.JSONDecoder(), 0
        while at < len(held):
            at += len(held[at:]) - len(held[at:].lstrip("; \n\t"))
            if at == len(held):
                break
            try:
                _, end = decoder.raw_decode(held, at)
            except (json.JSONDecodeError, RecursionError):
                return [held]
            call = _call(len(calls), held[at:end])
            if call is None:
                return [held]
            calls.append(call)
            at = end
        return calls or ([held] if held else [])
