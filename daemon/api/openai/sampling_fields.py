"""The fields that chat and text completions share, and the one reading of them.

Every field may be null, and null means absent. Bookkeeping fields that clients send by habit are declared here and
not looked at; a field that is declared nowhere is refused by name.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from daemon.serving.request import Sampling
from engine.errors import InvalidParameter
from engine.messages import AnyInt, Count, CountOrOff, Repetition

MAX_STOPS = 4
MAX_STOP_CHARS = 1024
_LOGIT_BIAS_LIMIT = 100.0


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None  # padding against traffic analysis: accepted, none is added


class SamplingFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields with the same meaning in /v1/chat/completions and /v1/completions."""

    model: Annotated[str, Meta(min_length=1, max_length=512)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    stop: str | list[str] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    seed: AnyInt | None = None
    logit_bias: dict[str, float] | None = None
    # Beyond OpenAI's own fields; the names are those that other open servers use.
    top_k: CountOrOff | None = None  # -1 and 0: off
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Repetition | None = None
    min_tokens: Count | None = None
    ignore_eos: bool | None = None
    # Bookkeeping: no effect that a caller of this server would miss.
    store: Any = None
    metadata: Any = None
    user: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None
    prompt_cache_options: Any = None
    service_tier: Any = None
    verbosity: Any = None
    prediction: Any = None
    cache_control: Any = None
    eager_input_streaming: Any = None


def read_stops(stop: str | list[str] | None) -> tuple[str, ...]:
    """Raises: InvalidParameter for too many, empty or overlong stop strings."""
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(stops) > MAX_STOPS:
        raise InvalidParameter(f"stop has {len(stops)} strings; at most {MAX_STOPS} are allowed.", param="stop")
    for text in stops:
        if not text:
            raise InvalidParameter("stop holds an empty string.", "Leave it out.", param="stop")
        if len(text) > MAX_STOP_CHARS:
            raise InvalidParameter(
                f"A stop string has {len(text):,} characters; at most {MAX_STOP_CHARS:,} are allowed.", param="stop"
            )
    return stops


def read_sampling(body: SamplingFields, *, max_tokens: int | None, top_logprobs: int | None) -> Sampling:
    """Raises: InvalidParameter"""
    if max_tokens is not None and (body.min_tokens or 0) > max_tokens:
        raise InvalidParameter(
            f"min_tokens is {body.min_tokens:,}, more than the {max_tokens:,} that max_tokens allows.",
            "Lower it, or raise max_tokens.",
            param="min_tokens",
        )
    return Sampling(
        max_tokens=max_tokens,
        min_tokens=body.min_tokens or 0,
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=max(0, body.top_k or 0),
        min_p=body.min_p or 0.0,
        repetition_penalty=body.repetition_penalty or 1.0,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        seed=body.seed,
        ignore_eos=bool(body.ignore_eos),
        logit_bias=_read_logit_bias(body.logit_bias),
        top_logprobs=top_logprobs,
    )


def include_usage(body: SamplingFields) -> bool:
    """Raises: InvalidParameter where stream_options comes without stream."""
    if body.stream_options is None:
        return False
    if not body.stream:
        raise InvalidParameter(
            "stream_options was given without stream.", "Set stream to true, or leave it out.", param="stream_options"
        )
    return bool(body.stream_options.include_usage)


def _read_logit_bias(bias: dict[str, float] | None) -> dict[int, float] | None:
    if not bias:
        return None
    read: dict[int, float] = {}
    for key, value in bias.items():
        if not key.isascii() or not key.isdigit() or len(key) > 10:
            raise InvalidParameter(f"logit_bias key {key[:32]!r} is not a token id.", param="logit_bias")
        if not -_LOGIT_BIAS_LIMIT <= value <= _LOGIT_BIAS_LIMIT:
            raise InvalidParameter(
                f"logit_bias of token {key} is {value}; it must lie between -100 and 100.", param="logit_bias"
            )
        read[int(key)] = value
    return read
