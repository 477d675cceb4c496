"""Answers of /api/chat and /api/generate: one object, or one JSON object a line."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from daemon.api.openai.reply import encode
from daemon.serving.events import ChoiceDone, Event, LogprobEntry, ReasoningDelta, TextDelta, TokenUsage, ToolCallDelta
from daemon.serving.generation import Generation
from daemon.store.base import utc_now


def now_text() -> str:
    return utc_now().isoformat().replace("+00:00", "Z")


class _Calls:
    """Tool calls, which this contract tells only whole. Owner: one answer."""

    def __init__(self) -> None:
        self._name = ""
        self._pieces: list[str] = []
        self._open = False

    def take(self, delta: ToolCallDelta) -> list[dict[str, Any]]:
        """The call before this one, if it is complete with it."""
        done = self.close() if delta.name is not None else []
        if delta.name is not None:
            self._name, self._open = delta.name, True
        self._pieces.append(delta.arguments)
        return done

    def close(self) -> list[dict[str, Any]]:
        if not self._open:
            return []
        text, self._open, self._pieces = "".join(self._pieces), False, []
        try:
            arguments = msgspec.json.decode(text, type=dict[str, Any])
        except msgspec.DecodeError:  # cut off by the token limit: no call
            return []
        return [{"function": {"name": self._name, "arguments": arguments}}]


class _Answer:
    """What both forms share: chat puts the text into a message, generate beside the rest."""

    def __init__(self, generation: Generation, model: str, *, chat: bool) -> None:
        self._generation = generation
        self._model = model
        self._chat = chat
        self._calls = _Calls()
        self._reason = "stop"

    def _parts(self, event: Event) -> dict[str, Any]:
        """What an event adds: content, thinking, tool_calls, logprobs; nothing if it is held back."""
        match event:
            case TextDelta(text=text, logprobs=logprobs):
                parts: dict[str, Any] = {"content": text} if text else {}
                return parts | ({"logprobs": _logprobs(logprobs)} if logprobs else {})
            case ReasoningDelta(text=text):
                return {"thinking": text} if text else {}
            case ToolCallDelta():
                calls = self._calls.take(event)
                return {"tool_calls": calls} if calls else {}
            case ChoiceDone(reason=reason):
                self._reason = "length" if reason == "length" else "stop"
                calls = self._calls.close()
                return {"tool_calls": calls} if calls else {}
        return {}

    def _object(self, parts: dict[str, Any], **tail: Any) -> dict[str, Any]:
        logprobs = {"logprobs": parts.pop("logprobs")} if "logprobs" in parts else {}
        head = {"model": self._model, "created_at": now_text()}
        text = {"content": parts.pop("content", ""), **parts}
        if self._chat:
            return head | {"message": {"role": "assistant", **text}} | logprobs | tail
        return head | {"response": text.pop("content"), **text} | logprobs | tail

    def _stats(self, usage: TokenUsage) -> dict[str, Any]:
        """Durations in nanoseconds: until the first token, and from there."""
        live = self._generation.live
        total_s = live.age_s
        first_s = live.first_token_s if live.first_token_s is not None else total_s
        return {
            "done": True,
            "done_reason": self._reason,
            "total_duration": _ns(total_s),
            "load_duration": 0,
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": _ns(first_s),
            "eval_count": usage.completion_tokens,
            "eval_duration": _ns(total_s - first_s),
        }


class WholeAnswer(_Answer):
    """Collects a generation into one object. Owner: one handler."""

    def __init__(self, generation: Generation, model: str, *, chat: bool) -> None:
        super().__init__(generation, model, chat=chat)
        self._all: dict[str, Any] = {}

    def take(self, event: Event) -> None:
        for name, part in self._parts(event).items():
            self._all[name] = self._all[name] + part if name in self._all else part

    def encode(self, usage: TokenUsage) -> bytes:
        return encode(self._object(self._all, **self._stats(usage)))


class LineAnswer(_Answer):
    """Writes a stream's lines. Owner: one handler."""

    def take(self, event: Event) -> bytes:
        parts = self._parts(event)
        return encode(self._object(parts, done=False)) + b"\n" if parts else b""

    def finished(self, usage: TokenUsage) -> bytes:
        return encode(self._object({}, **self._stats(usage))) + b"\n"


def loaded(model: str, *, chat: bool) -> bytes:
    """The answer to a request without a prompt, by which clients ask that a model be loaded."""
    text: dict[str, Any] = {"message": {"role": "assistant", "content": ""}} if chat else {"response": ""}
    return encode({"model": model, "created_at": now_text(), **text, "done": True, "done_reason": "load"})


def elapsed_ns(since_mono: float) -> int:
    return _ns(time.monotonic() - since_mono)


def _ns(seconds: float) -> int:
    return max(0, round(seconds * 1e9))


def _logprobs(entries: tuple[LogprobEntry, ...]) -> list[dict[str, Any]]:
    return [
        {
            "token": entry.token,
            "logprob": entry.logprob,
            "bytes": list(entry.token_bytes),
            "top_logprobs": [
                {"token": other.token, "logprob": other.logprob, "bytes": list(other.token_bytes)}
                for other in entry.top
            ],
        }
        for entry in entries
    ]
