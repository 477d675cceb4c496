"""ResponseWriter: the response object of one request, and the numbered events that tell how it comes about."""

from __future__ import annotations

from typing import Any

import msgspec

from daemon.api.errors import sentence
from daemon.api.openai.reply import encode
from daemon.api.openai.responses.output import OutputItems, Told
from daemon.api.openai.responses.request import ResponsesBody, summary_wanted
from daemon.serving.events import ChoiceDone, ChoiceEvent, ReasoningDelta, TextDelta, TokenUsage, ToolCallDelta
from engine.errors import BayardError


class ResponseWriter:
    """Every method that takes something returns the events it makes, encoded. Mutable. Owner: one handler."""

    def __init__(self, response_id: str, created: int, body: ResponsesBody) -> None:
        self.object = _head(response_id, created, body)
        self._items = OutputItems(response_id.partition("_")[2], summary=summary_wanted(body) is not None)
        self._next_number = 0
        self._begun = False

    def begin(self) -> bytes:
        """created and in_progress; nothing if they were told."""
        if self._begun:
            return b""
        self._begun = True
        return self._encode([self._whole("response.created"), self._whole("response.in_progress")])

    def take(self, event: ChoiceEvent) -> bytes:
        first = self.begin()
        match event:
            case TextDelta():
                told = self._items.text(event)
            case ReasoningDelta():
                told = self._items.reasoning(event)
            case ToolCallDelta():
                told = self._items.call(event)
            case ChoiceDone():
                cut = event.reason == "length"
                told = [*self._items.ensure_message(), *self._items.close("incomplete" if cut else "completed")]
                if cut:
                    self.object["incomplete_details"] = {"reason": "max_output_tokens"}
                self.object["status"] = "incomplete" if cut else "completed"
        self.object["output"] = self._items.items
        return first + self._encode(told)

    def finish(self, usage: TokenUsage) -> bytes:
        """The terminal event, after every choice is done."""
        self.object["usage"] = {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
            "total_tokens": usage.total_tokens,
        }
        return self._encode([self._whole(f"response.{self.object['status']}")])

    def fail(self, error: BayardError) -> bytes:
        """The terminal event of an answer that cannot be completed."""
        first = self.begin()
        told = self._items.close("incomplete")
        self.object["output"] = self._items.items
        self.object["status"] = "failed"
        self.object["error"] = {"code": error.code, "message": sentence(error)}
        return first + self._encode([*told, self._whole("response.failed")])

    def _whole(self, kind: str) -> Told:
        return {"type": kind, "response": self.object}

    def _encode(self, told: list[Told]) -> bytes:
        out: list[bytes] = []
        for event in told:
            kind, *rest = event.items()
            numbered = dict([kind, ("sequence_number", self._next_number), *rest])
            out.append(b"event: " + event["type"].encode() + b"\ndata: " + encode(numbered) + b"\n\n")
            self._next_number += 1
        return b"".join(out)


def _head(response_id: str, created: int, body: ResponsesBody) -> dict[str, Any]:
    form = body.text.format if body.text is not None and body.text.format is not None else None
    return {
        "id": response_id,
        "object": "response",
        "created_at": created,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "model": body.model,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "reasoning": {"effort": body.reasoning and body.reasoning.effort, "summary": summary_wanted(body)},
        "service_tier": "default",
        "store": body.store is not False,
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "text": {"format": {"type": "text"} if form is None else msgspec.to_builtins(form)},
        "tool_choice": "auto" if body.tool_choice is None else msgspec.to_builtins(body.tool_choice),
        "tools": [msgspec.to_builtins(tool) for tool in body.tools or ()],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": body.user,
    }
