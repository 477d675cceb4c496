"""HarmonyParser: gpt-oss's messages, each on a channel: analysis is thinking, final is content, the rest is calls.

    <|channel|>analysis<|message|>thinking<|end|><|start|>assistant<|channel|>final<|message|>answer

A message on the channel "commentary" that is addressed to functions.NAME is a call; one to nobody is content.
"""

from __future__ import annotations

import re
from enum import StrEnum

from engine.text.held_text import held_length
from engine.text.output_parser import Content, Part, Reasoning
from engine.text.tool_call import json_or_none, numbered

_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>", _START)
_FUNCTION = re.compile(r"\bto=functions\.([^\s<]+)")
_CHANNEL_NAME = re.compile(re.escape(_CHANNEL) + r"\s*(\w+)")
_BEGINNINGS = (_CHANNEL, "to=", _START, "assistant")


class _Kind(StrEnum):
    HEADER = "header"  # up to <|message|>
    THINKING = "thinking"
    CONTENT = "content"
    CALL = "call"


class HarmonyParser:
    """See OutputParser. Without tools a call is shown as content."""

    def __init__(self, kept_token_ids: frozenset[int] = frozenset(), *, tools: bool = True) -> None:
        self.kept_token_ids = kept_token_ids
        self._tools = tools
        self._held = ""
        self._kind = _Kind.HEADER
        self._name = ""  # of the function, while CALL
        self._calls = 0

    def feed(self, text: str) -> list[Part]:
        self._held += text
        out: list[Part] = []
        while self._header() if self._kind is _Kind.HEADER else self._body(out):
            pass
        return out

    def flush(self) -> list[Part]:
        """The end of the stream, which is also how a call ends: its mark is a stop token."""
        held, self._held = self._held, ""
        out: list[Part] = []
        if self._kind is _Kind.HEADER:
            if held.strip() and not any(mark in held for mark in (_CHANNEL, _START, "to=")):
                out.append(Content(held))  # a text that begins like a header
        else:
            self._say(out, held, ends=True)
        return out

    def _header(self) -> bool:
        head, mark, rest = self._held.partition(_MESSAGE)
        if not mark:  # what may be the beginning of the mark is no part of the header
            head = self._held[: len(self._held) - held_length(self._held, _MESSAGE)]
        if not self._is_header(head):
            # The model left the form: what it writes is shown.
            self._kind = _Kind.CONTENT
            return True
        if not mark:
            return False
        channel = _CHANNEL_NAME.search(head)
        function = _FUNCTION.search(head)
        self._held = rest
        if function is not None and self._tools:
            self._kind, self._name = _Kind.CALL, function[1]
        elif channel is not None and channel[1] == "analysis":
            self._kind = _Kind.THINKING
        else:
            self._kind = _Kind.CONTENT
        return True

    def _is_header(self, text: str) -> bool:
        """Whether text is the beginning of a header, as far as it goes."""
        begun = text.lstrip()
        return any(begun.startswith(first) or first.startswith(begun) for first in _BEGINNINGS)

    def _body(self, out: list[Part]) -> bool:
        places = [(at, end) for end in _ENDS if (at := self._held.find(end)) >= 0]
        if not places:
            if self._kind is not _Kind.CALL:
                safe = len(self._held) - max(held_length(self._held, end) for end in _ENDS)
                text, self._held = self._held[:safe], self._held[safe:]
                self._say(out, text, ends=False)
            return False
        at, end = min(places)
        text, self._held = self._held[:at], self._held[at + len(end) :]
        if end == _START:
            self._held = _START + self._held
        self._say(out, text, ends=True)
        self._kind = _Kind.HEADER
        return True

    def _say(self, out: list[Part], text: str, *, ends: bool) -> None:
        if self._kind is _Kind.CALL:
            assert ends
            arguments = json_or_none(text) if text.strip() else {}
            if isinstance(arguments, dict):
                out.append(numbered(self._calls, (self._name, arguments)))
                self._calls += 1
            else:
                out.append(Content(text))
        elif text:
            out.append(Reasoning(text) if self._kind is _Kind.THINKING else Content(text))
