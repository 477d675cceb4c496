"""Answers of /v1/completions: one object, or the chunks of a stream as bytes."""

from __future__ import annotations

from typing import Any

from daemon.api.openai.reply import SYSTEM_FINGERPRINT, Collected, encode, usage_chunk, usage_object
from daemon.serving.events import ChoiceDone, LogprobEntry, TextDelta, TokenUsage


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

    def __init__(self, answer_id: str, created: int, model: str, num_choices: int, *, logprobs: bool) -> None:
        super().__init__(num_choices)
        self._head = {"id": answer_id, "object": "text_completion", "created": created, "model": model}
        self._logprobs = logprobs

    def encode(self, usage: TokenUsage) -> bytes:
        choices = [
            {
                "index": index,
                "text": "".join(texts),
                "logprobs": _Logprobs().take(tuple(self.entries[index])) if self._logprobs else None,
                "finish_reason": self.reasons[index],
            }
            for index, texts in enumerate(self.texts)
        ]
        tail = {"choices": choices, "usage": usage_object(usage), "system_fingerprint": SYSTEM_FINGERPRINT}
        return encode(self._head | tail)


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

    def text(self, delta: TextDelta) -> bytes:
        logprobs = b"null" if self._logprobs is None else encode(self._logprobs[delta.index].take(delta.logprobs or ()))
        after = b',"logprobs":' + logprobs + b',"finish_reason":null}]'
        return self._before_text[delta.index] + encode(delta.text) + after + self._tail

    def done(self, choice: ChoiceDone) -> bytes:
        after = b'"","logprobs":null,"finish_reason":' + encode(choice.reason) + b"}]"
        return self._before_text[choice.index] + after + self._tail

    def finished(self, usage: TokenUsage) -> bytes:
        """The usage chunk where it was asked for; else nothing."""
        return usage_chunk(self._head, usage) if self._include_usage else b""
