"""What every OpenAI answer shares: fingerprint, usage, log-probabilities, raw JSON pieces."""

from __future__ import annotations

import hashlib
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import msgspec

from daemon.api.errors import WireError, wire_error
from daemon.serving.events import LogprobEntry, TokenUsage
from engine.errors import BayardError

encode = msgspec.json.Encoder().encode


def _fingerprint() -> str:
    try:
        build = version("bayard")
    except PackageNotFoundError:
        build = "source"
    return "fp_" + hashlib.sha256(build.encode()).hexdigest()[:10]


SYSTEM_FINGERPRINT = _fingerprint()  # constant per build


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


def error_event(error: BayardError) -> bytes:
    """An error inside a stream; nothing follows it, above all no [DONE]."""
    return error_data(wire_error(error))


def error_data(wire: WireError) -> bytes:
    return b"data: " + wire.encode() + b"\n\n"
