"""Answers of /v1/chat/completions: one object, or the chunks of a stream as bytes."""

from __future__ import annotations

from typing import Any

from daemon.api.openai.reply import (
    SYSTEM_FINGERPRINT,
    Collected,
    CollectedChoice,
    chat_logprobs,
    encode,
    usage_chunk,
    usage_object,
)
from daemon.serving.events import ChoiceDone, ChoiceEvent, ReasoningDelta, TextDelta, TokenUsage, ToolCallDelta


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
                "message": _message(choice),
                "logprobs": chat_logprobs(tuple(choice.entries)) if self._logprobs else None,
                "finish_reason": choice.reason,
            }
            for index, choice in enumerate(self.choices)
        ]
        tail = {
            "choices": choices,
            "usage": usage_object(usage),
            "service_tier": "default",
            "system_fingerprint": SYSTEM_FINGERPRINT,
        }
        return encode(self._head | tail)


def _message(choice: CollectedChoice) -> dict[str, Any]:
    text = choice.text
    message: dict[str, Any] = {
        "role": "assistant",
        "content": None if choice.calls and not text else text,
        "refusal": None,
    }
    if choice.reasoning:
        message["reasoning_content"] = "".join(choice.reasoning)
    if choice.calls:
        message["tool_calls"] = [
            {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in choice.calls
        ]
    return message


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
        self._before = [self._head + b',"choices":[{"index":%d,"delta":' % index for index in range(num_choices)]
        self._after = b',"logprobs":null,"finish_reason":null}]' + self._tail

    def chunk(self, event: ChoiceEvent) -> bytes:
        """One chunk; before a choice's first, the one that tells the role."""
        index = event.index
        first = b"" if self._begun[index] else self._first(index)
        before = first + self._before[index]
        match event:
            case TextDelta():
                delta = b'{"content":' + encode(event.text) + b"}"
                if not self._logprobs:
                    return before + delta + self._after
                logprobs = encode(chat_logprobs(event.logprobs or ()))
                return before + delta + b',"logprobs":' + logprobs + b',"finish_reason":null}]' + self._tail
            case ReasoningDelta():
                return before + b'{"reasoning_content":' + encode(event.text) + b"}" + self._after
            case ToolCallDelta():
                return before + encode({"tool_calls": [_call_delta(event)]}) + self._after
            case ChoiceDone():
                reason = encode(event.reason)
                return before + b'{},"logprobs":null,"finish_reason":' + reason + b"}]" + self._tail

    def finished(self, usage: TokenUsage) -> bytes:
        """The usage chunk where it was asked for; else nothing."""
        return usage_chunk(self._head, usage) if self._include_usage else b""

    def _first(self, index: int) -> bytes:
        self._begun[index] = True
        return self._before[index] + b'{"role":"assistant","content":""}' + self._after


def _call_delta(event: ToolCallDelta) -> dict[str, Any]:
    """id, type and name only in a call's first delta: clients join what is repeated."""
    if event.call_id is None:
        return {"index": event.call, "function": {"arguments": event.arguments}}
    function = {"name": event.name, "arguments": event.arguments}
    return {"index": event.call, "id": event.call_id, "type": "function", "function": function}
