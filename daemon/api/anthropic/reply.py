"""Answers of /v1/messages: one message, or the events of a stream."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import msgspec

from daemon.api.openai.reply import encode
from daemon.serving.events import ChoiceDone, Event, ReasoningDelta, TextDelta, TokenUsage, ToolCallDelta

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_CALL, _TOOL_USE = "call_", "toolu_"


def stop_reason(done: ChoiceDone) -> str:
    return "stop_sequence" if done.stop is not None else _STOP_REASONS[done.reason]


def usage_object(input_tokens: int, output_tokens: int) -> dict[str, Any]:
    """input_tokens counts the whole prompt, as count_tokens does, whatever of it was cached."""
    return {
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "service_tier": "standard",
    }


def tool_use_id(call_id: str) -> str:
    return _TOOL_USE + call_id.removeprefix(_CALL)


def signature_of(thinking: str) -> str:
    """Clients send it back with the thought; here it is not looked at."""
    return hashlib.sha256(thinking.encode()).hexdigest()[:32]


@dataclass(slots=True)
class _Block:
    """kind: thinking, text or tool_use; call: of a tool_use, its number."""

    kind: str
    pieces: list[str] = field(default_factory=list)
    call: int = -1
    id: str = ""
    name: str = ""

    def whole(self) -> dict[str, Any]:
        text = "".join(self.pieces)
        match self.kind:
            case "thinking":
                return {"type": "thinking", "thinking": text, "signature": signature_of(text)}
            case "text":
                return {"type": "text", "text": text, "citations": None}
            case _:
                return {"type": "tool_use", "id": self.id, "name": self.name, "input": _object(text)}

    def opening(self) -> dict[str, Any]:
        match self.kind:
            case "thinking":
                return {"type": "thinking", "thinking": "", "signature": ""}
            case "text":
                return {"type": "text", "text": ""}
            case _:
                return {"type": "tool_use", "id": self.id, "name": self.name, "input": {}}

    def delta(self, piece: str) -> dict[str, Any]:
        match self.kind:
            case "thinking":
                return {"type": "thinking_delta", "thinking": piece}
            case "text":
                return {"type": "text_delta", "text": piece}
            case _:
                return {"type": "input_json_delta", "partial_json": piece}


class _Blocks:
    """Which block an event belongs to. show_thinking False leaves thoughts out."""

    def __init__(self, *, show_thinking: bool) -> None:
        self.all: list[_Block] = []
        self.done: ChoiceDone | None = None
        self._show_thinking = show_thinking

    def take(self, event: Event) -> tuple[_Block, str] | None:
        """The block that grows and by what; None where none does."""
        match event:
            case ReasoningDelta(text=piece) if piece and self._show_thinking:
                block = self._block("thinking")
            case TextDelta(text=piece) if piece:
                block = self._block("text")
            case ToolCallDelta(call=call, arguments=piece, call_id=call_id, name=name):
                block = self._block("tool_use", call)
                block.id, block.name = block.id or tool_use_id(call_id or ""), block.name or name or ""
            case ChoiceDone():
                self.done = event
                return None
            case _:
                return None
        block.pieces.append(piece)
        return block, piece

    def _block(self, kind: str, call: int = -1) -> _Block:
        if not self.all or (self.all[-1].kind, self.all[-1].call) != (kind, call):
            self.all.append(_Block(kind, call=call))
        return self.all[-1]


class MessageObject:
    """Collects a generation into one message. Owner: one handler."""

    def __init__(self, answer_id: str, model: str, *, show_thinking: bool) -> None:
        self._id, self._model = answer_id, model
        self._blocks = _Blocks(show_thinking=show_thinking)

    def take(self, event: Event) -> None:
        self._blocks.take(event)

    def encode(self, usage: TokenUsage) -> bytes:
        done = self._blocks.done
        assert done is not None, "a choice is done before its generation is"
        message = _message(self._id, self._model, usage_object(usage.prompt_tokens, usage.completion_tokens))
        content = [block.whole() for block in self._blocks.all]
        return encode(message | {"content": content, "stop_reason": stop_reason(done), "stop_sequence": done.stop})


class MessageEvents:
    """Writes a stream's events; every one is named, or clients would not see it. Owner: one handler."""

    def __init__(self, answer_id: str, model: str, input_tokens: int, *, show_thinking: bool) -> None:
        self._message = _message(answer_id, model, usage_object(input_tokens, 0))
        self._input_tokens = input_tokens
        self._blocks = _Blocks(show_thinking=show_thinking)
        self._begun = False
        self._open: _Block | None = None

    def take(self, event: Event) -> bytes:
        out = b"" if self._begun else self._begin()
        grown = self._blocks.take(event)
        if grown is None:
            return out
        block, piece = grown
        if block is not self._open:
            out += self._close() + self._event(
                "content_block_start", index=len(self._blocks.all) - 1, content_block=block.opening()
            )
            self._open = block
        return out + self._event("content_block_delta", index=len(self._blocks.all) - 1, delta=block.delta(piece))

    def finished(self, usage: TokenUsage) -> bytes:
        done = self._blocks.done
        assert done is not None, "a choice is done before its generation is"
        out = (b"" if self._begun else self._begin()) + self._close()
        delta = {"stop_reason": stop_reason(done), "stop_sequence": done.stop}
        told = usage_object(self._input_tokens, usage.completion_tokens)
        del told["service_tier"]
        return out + self._event("message_delta", delta=delta, usage=told) + self._event("message_stop")

    def _begin(self) -> bytes:
        self._begun = True
        return self._event("message_start", message=self._message)

    def _close(self) -> bytes:
        block, self._open = self._open, None
        if block is None:
            return b""
        index = self._blocks.all.index(block)
        signed = b""
        if block.kind == "thinking":
            signature = {"type": "signature_delta", "signature": signature_of("".join(block.pieces))}
            signed = self._event("content_block_delta", index=index, delta=signature)
        return signed + self._event("content_block_stop", index=index)

    def _event(self, kind: str, **fields: Any) -> bytes:
        return b"event: " + kind.encode() + b"\ndata: " + encode({"type": kind, **fields}) + b"\n\n"


def _object(text: str) -> dict[str, Any]:
    """Arguments as an object; an empty one where max_tokens cut them off."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError:
        return {}


def _message(answer_id: str, model: str, usage: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": answer_id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }
