"""Answers of /v1/chat/completions: one object, or the chunks of a stream as bytes."""

from __future__ import annotations

from typing import Any

from daemon.api.openai.reply import SYSTEM_FINGERPRINT, Collected, chat_logprobs, encode, usage_chunk, usage_object
from daemon.serving.events import ChoiceDone, TextDelta, TokenUsage


class ChatObject(Collected):
    """Collects a generation into one chat.completion. Owner: one handler."""

    def __init__(self, answer_id: str, created: int, model: str, num_choices: int, *, logprobs: bool) -> None:
        super().__init__(num_choices)
        self._head = {"id": answer_id, "object": "chat.completion", "created": created, "model": model}
        self._logprobs = logprobs

    def encode(self, usage: TokenUsage) -> bytes:
        choices: list[dict[str, Any]] = [
            {
                "index": index,
                "message": {"role": "assistant", "content": "".join(texts), "refusal": None},
                "logprobs": chat_logprobs(tuple(self.entries[index])) if self._logprobs else None,
                "finish_reason": self.reasons[index],
            }
            for index, texts in enumerate(self.texts)
        ]
        tail = {
            "choices": choices,
            "usage": usage_object(usage),
            "service_tier": "default",
            "system_fingerprint": SYSTEM_FINGERPRINT,
        }
        return encode(self._head | tail)


class ChatChunks:
    """Writes a stream's chunks around pieces that never change. Owner: one handler."""

    def __init__(
        self, answer_id: str, created: int, model: str, num_choices: int, *, logprobs: bool, include_usage: bool
    ) -> None:
        head = {
            "id": answer_id,
            "object": "chat.completion.chunk",
            "created": created,
            "model": model,
            "service_tier": "default",
            "system_fingerprint": SYSTEM_FINGERPRINT,
        }
        self._head = b"data: " + encode(head)[:-1]
        self._tail = b',"usage":null}\n\n' if include_usage else b"}\n\n"
        self._include_usage = include_usage
        self._logprobs = logprobs
        self._begun = [False] * num_choices
        self._before_text = [
            self._head + b',"choices":[{"index":%d,"delta":{"content":' % index for index in range(num_choices)
        ]
        self._after_text = b'},"logprobs":null,"finish_reason":null}]' + self._tail

    def text(self, delta: TextDelta) -> bytes:
        first = b"" if self._begun[delta.index] else self._first(delta.index)
        if not self._logprobs:
            return first + self._before_text[delta.index] + encode(delta.text) + self._after_text
        logprobs = encode(chat_logprobs(delta.logprobs or ()))
        middle = b'},"logprobs":' + logprobs + b',"finish_reason":null}]'
        return first + self._before_text[delta.index] + encode(delta.text) + middle + self._tail

    def done(self, choice: ChoiceDone) -> bytes:
        first = b"" if self._begun[choice.index] else self._first(choice.index)
        reason = encode(choice.reason)
        body = b',"choices":[{"index":%d,"delta":{},"logprobs":null,"finish_reason":%s}]' % (choice.index, reason)
        return first + self._head + body + self._tail

    def finished(self, usage: TokenUsage) -> bytes:
        """The usage chunk where it was asked for; else nothing."""
        return usage_chunk(self._head, usage) if self._include_usage else b""

    def _first(self, index: int) -> bytes:
        self._begun[index] = True
        delta = b',"choices":[{"index":%d,"delta":{"role":"assistant","content":""},' % index
        return self._head + delta + b'"logprobs":null,"finish_reason":null}]' + self._tail
