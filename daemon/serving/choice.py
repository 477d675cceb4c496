"""From token deltas to events: one ChoiceDecoder a choice. Holds back half characters, stops and unfinished calls."""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING

from daemon.serving.aligner import LogprobAligner
from daemon.serving.events import (
    ChoiceDone,
    ChoiceEvent,
    LogprobEntry,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
)
from engine.messages import TokenDelta
from engine.text import Content, IncrementalDetokenizer, OutputParser, Part, Reasoning, StopMatcher

if TYPE_CHECKING:
    from engine.text import TextPipeline


class ChoiceDecoder:
    """Mutable. Owner: one Generation. one_call ends the choice with its first tool call."""

    def __init__(
        self,
        index: int,
        text: TextPipeline,
        stops: tuple[str, ...],
        *,
        logprobs: bool,
        continuing: bool,
        parser: OutputParser | None = None,
        one_call: bool = False,
    ) -> None:
        self.index = index
        self.num_tokens = 0
        self.reasoning_tokens = 0
        self.done = False  # its ChoiceDone has been told
        self._calls = 0
        self._one_call = one_call
        self._thought = False
        self._answering = False  # something besides thinking has come
        self._parser = parser
        keep = frozenset[int]() if parser is None else parser.kept_token_ids
        self._detokenizer = IncrementalDetokenizer(text, continuing=continuing, keep=keep)
        self._matcher = StopMatcher(stops) if stops else None
        self._aligner = LogprobAligner(text) if logprobs else None

    def feed(self, delta: TokenDelta) -> list[ChoiceEvent]:
        """What is certain now; the last is a ChoiceDone where a stop string or the one call ended it."""
        self.num_tokens += len(delta.token_ids)
        text = self._detokenizer.feed(delta.token_ids)
        stopped = False
        if self._matcher:
            text, stopped = self._matcher.feed(text)
        entries: tuple[LogprobEntry, ...] | None = None
        if self._aligner is not None:
            self._aligner.hold(delta.logprobs or [])
            entries = self._aligner.release(text, all_covered=self._matcher is None)
        parts: list[Part] = self._parsed(text)
        if stopped and self._parser is not None:
            parts += self._parser.flush()
        if self._parser is not None and not self._answering:
            if all(isinstance(part, Reasoning) for part in parts):
                self.reasoning_tokens += len(delta.token_ids) if self._thinking(parts) else 0
            else:
                self._answering = True
        events, ended = self._events(parts, entries)
        if ended or stopped:
            events.append(self._end("stop"))
        return events

    def finish(self, reason: str) -> list[ChoiceEvent]:
        """What was held back, once no more tokens come, and the ChoiceDone. reason: "stop" or "length"."""
        text = self._detokenizer.flush()
        if self._matcher:
            text, stopped = self._matcher.feed(text)
            if stopped:
                reason = "stop"
            else:
                text += self._matcher.flush()
        parts = self._parsed(text)
        if self._parser is not None:
            parts += self._parser.flush()
        events, ended = self._events(parts, self._aligner.rest() if self._aligner else None)
        events.append(self._end("stop" if ended else reason))
        return events

    def end_empty(self) -> ChoiceDone:
        """Nothing is generated for this choice."""
        self.done = True
        return ChoiceDone(self.index, "length")

    def _end(self, reason: str) -> ChoiceDone:
        self.done = True
        matched = self._matcher.matched if self._matcher else None
        if reason == "stop" and self._calls:
            reason = "tool_calls"
        return ChoiceDone(self.index, reason, matched)

    def _parsed(self, text: str) -> list[Part]:
        if self._parser is not None:
            return self._parser.feed(text)
        return [Content(text)] if text else []

    def _thinking(self, parts: list[Part]) -> bool:
        """Whether thinking has begun, with these parts or before."""
        self._thought = self._thought or bool(parts)
        return self._thought

    def _events(self, parts: list[Part], entries: tuple[LogprobEntry, ...] | None) -> tuple[list[ChoiceEvent], bool]:
        """The parts as events, and whether the one call that may be made has been."""
        events: list[ChoiceEvent] = []
        for part in parts:
            if isinstance(part, Content):
                if entries is None and events and isinstance(events[-1], TextDelta):
                    events[-1] = TextDelta(self.index, events[-1].text + part.text)
                else:
                    events.append(TextDelta(self.index, part.text, entries))
                    entries = None if entries is None else ()
            elif isinstance(part, Reasoning):
                events.append(ReasoningDelta(self.index, part.text))
            else:
                call_id = f"call_{secrets.token_hex(12)}"
                arguments, name = well_formed(part.arguments), part.name.encode("utf-8", "replace").decode()
                events.append(ToolCallDelta(self.index, self._calls, arguments, call_id, name))
                self._calls += 1
                if self._one_call:
                    break
        if entries:  # of tokens whose text is no part of the answer, or none yet
            events.append(TextDelta(self.index, "", entries))
        return events, self._one_call and self._calls > 0


def well_formed(json_text: str) -> str:
    """The same JSON without half a surrogate pair, which a model may write as an escape: it stays one."""
    try:
        json_text.encode()
    except UnicodeEncodeError:
        return json.dumps(json.loads(json_text))
    return json_text
