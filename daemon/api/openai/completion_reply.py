"""Answers of /v1/completions: one object, or the chunks of a stream as bytes."""

from __future__ import annotations

import math
from typing import Any

from daemon.api.openai.reply import (
    SYSTEM_FINGERPRINT,
    Collected,
    CollectedChoice,
    encode,
    usage_chunk,
    usage_object,
)
from daemon.serving.events import ChoiceDone, ChoiceEvent, LogprobEntry, TextDelta, TokenUsage
from daemon.serving.request import GenerationRequest


class _Logprobs:
    """The older shape of log-probabilities: parallel lists, offsets in characters. Owner: one choice."""

    def __init__(self) -> None:
        self._offset = 0

    def take(self, entries: tuple[LogprobEntry, ...]) -> dict[str, Any]:
        offsets: list[int] = []
        for entry in entries:
            offsets.append(self._offset)
            self._offset += len(entry.token_bytes.decode("utf-8", "ignore"))
        return {
            "tokens": [entry.token for entry in entries],
            "token_logprobs": [entry.logprob for entry in entries],
            "top_logprobs": [{other.token: other.logprob for other in entry.top} for entry in entries],
            "text_offset": offsets,
        }


class CompletionObject(Collected):
    """Collects a generation into one text_completion. Owner: one handler."""

    def __init__(self, answer_id: str, created: int, request: GenerationRequest, *, logprobs: bool) -> None:
        super().__init__(request.num_choices)
        self._head = {"id": answer_id, "object": "text_completion", "created": created, "model": request.model}
        self._logprobs = logprobs
        self._n, self._candidates = request.n, request.candidates

    def kept(self) -> list[CollectedChoice]:
        """The choices to answer with: of each prompt's candidates the n most probable, best first."""
        if self._candidates == self._n:
            return self.choices
        kept: list[CollectedChoice] = []
        for start in range(0, len(self.choices), self._candidates):
            of_prompt = self.choices[start : start + self._candidates]
            kept += sorted(of_prompt, key=_mean_logprob, reverse=True)[: self._n]
        return kept

    def encode(self, usage: TokenUsage) -> bytes:
        choices = [
            {
                "index": index,
                "text": choice.text,
                "logprobs": _Logprobs().take(tuple(choice.entries)) if self._logprobs else None,
                "finish_reason": choice.reason,
            }
            for index, choice in enumerate(self.kept())
        ]
        tail = {"choices": choices, "usage": usage_object(usage), "system_fingerprint": SYSTEM_FINGERPRINT}
        return encode(self._head | tail)


def _mean_logprob(choice: CollectedChoice) -> float:
    """Of a token of its text; a choice without tokens comes last."""
    entries = choice.entries
    return sum(entry.logprob for entry in entries) / len(entries) if entries else -math.inf


class CompletionChunks:
    """Writes a stream's chunks around pieces that never change. Owner: one handler."""

    def __init__(
        self, answer_id: str, created: int, model: str, num_choices: int, *, logprobs: bool, include_usage: bool
    ) -> None:
        head = {
            "id": answer_id,
            "object": "text_completion",
            "created": created,
            "model": model,
            "system_fingerprint": SYSTEM_FINGERPRINT,
        }
        self._head = b"data: " + encode(head)[:-1]
        self._tail = b',"usage":null}\n\n' if include_usage else b"}\n\n"
        self._include_usage = include_usage
        self._logprobs = [_Logprobs() for _ in range(num_choices)] if logprobs else None
        self._before_text = [self._head + b',"choices":[{"index":%d,"text":' % index for index in range(num_choices)]

    def chunk(self, event: ChoiceEvent) -> bytes:
        before = self._before_text[event.index]
        match event:
            case TextDelta():
                logprobs = b"null"
                if self._logprobs is not None:
                    logprobs = encode(self._logprobs[event.index].take(event.logprobs or ()))
                return (
                    before + encode(event.text) + b',"logprobs":' + logprobs + b',"finish_reason":null}]' + self._tail
                )
            case ChoiceDone():
                return before + b'"","logprobs":null,"finish_reason":' + encode(event.reason) + b"}]" + self._tail
            case _:
                raise AssertionError(f"a completion has no {type(event).__name__}")

    def finished(self, usage: TokenUsage) -> bytes:
        """The usage chunk where it was asked for; else nothing."""
        return usage_chunk(self._head, usage) if self._include_usage else b""
