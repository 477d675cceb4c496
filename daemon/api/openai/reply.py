"""What every OpenAI answer shares: fingerprint, usage, log-probabilities, raw JSON pieces."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from daemon import __version__
from daemon.api.errors import WireError, wire_error
from daemon.serving.events import ChoiceDone, LogprobEntry, TextDelta, TokenUsage
from engine.errors import BayardError

encode = msgspec.json.Encoder().encode


SYSTEM_FINGERPRINT = "fp_" + hashlib.sha256(__version__.encode()).hexdigest()[:10]  # constant per build


class Collected:
    """What a generation has told of its choices so far. Owner: one handler's answer."""

    def __init__(self, num_choices: int) -> None:
        self.texts: list[list[str]] = [[] for _ in range(num_choices)]
        self.entries: list[list[LogprobEntry]] = [[] for _ in range(num_choices)]
        self.reasons = [""] * num_choices

    def text(self, delta: TextDelta) -> None:
        self.texts[delta.index].append(delta.text)
        self.entries[delta.index].extend(delta.logprobs or ())

    def done(self, choice: ChoiceDone) -> None:
        self.reasons[choice.index] = choice.reason


def usage_object(usage: TokenUsage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": 0},
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
