"""What every OpenAI answer shares: fingerprint, usage, log-probabilities, raw JSON pieces."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import msgspec

from daemon import __version__
from daemon.api.errors import WireError, wire_error
from daemon.serving.events import (
    ChoiceDone,
    ChoiceEvent,
    LogprobEntry,
    ReasoningDelta,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
)
from engine.errors import BayardError

encode = msgspec.json.Encoder().encode


SYSTEM_FINGERPRINT = "fp_" + hashlib.sha256(__version__.encode()).hexdigest()[:10]  # constant per build


class CollectedChoice:
    """What a generation has told of one choice so far. Mutable. Owner: one Collected."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.reasoning: list[str] = []
        self.calls: list[CollectedCall] = []
        self.entries: list[LogprobEntry] = []
        self.reason = ""
        self.stop: str | None = None

    @property
    def text(self) -> str:
        return "".join(self.texts)


@dataclass(slots=True)
class CollectedCall:
    """A tool call as far as it has been told. Mutable. Owner: one CollectedChoice."""

    call_id: str
    name: str
    arguments: str = ""


class Collected:
    """A generation's choices, complete once Finished has come. Owner: one handler's answer."""

    def __init__(self, num_choices: int) -> None:
        self.choices = [CollectedChoice() for _ in range(num_choices)]

    def take(self, event: ChoiceEvent) -> None:
        choice = self.choices[event.index]
        match event:
            case TextDelta():
                choice.texts.append(event.text)
                choice.entries.extend(event.logprobs or ())
            case ReasoningDelta():
                choice.reasoning.append(event.text)
            case ToolCallDelta():
                if event.call_id is not None and event.name is not None:
                    choice.calls.append(CollectedCall(event.call_id, event.name))
                choice.calls[event.call].arguments += event.arguments
            case ChoiceDone():
                choice.reason, choice.stop = event.reason, event.stop


def usage_object(usage: TokenUsage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def chat_logprobs(entries: tuple[LogprobEntry, ...]) -> dict[str, Any]:
    content = [
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
    return {"content": content, "refusal": None}


def usage_chunk(head: bytes, usage: TokenUsage) -> bytes:
    """A stream's last chunk, for a client that asked for the usage. head: the chunk up to its choices."""
    return head + b',"choices":[],"usage":' + encode(usage_object(usage)) + b"}\n\n"


def error_event(error: BayardError) -> bytes:
    """An error inside a stream; nothing follows it, above all no [DONE]."""
    return error_data(wire_error(error))


def error_data(wire: WireError) -> bytes:
    return b"data: " + wire.encode() + b"\n\n"
