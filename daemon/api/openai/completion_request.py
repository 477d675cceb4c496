"""POST /v1/completions: the body, its checks, and its meaning as a GenerationRequest."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from daemon.api.openai.sampling_fields import SamplingFields, include_usage, read_sampling, read_stops
from daemon.serving.request import Endpoint, GenerationRequest, Prompt, TextPrompt, TokenPrompt
from engine.errors import InvalidParameter
from engine.messages import AnyInt, Count

DEFAULT_MAX_TOKENS = 16
MAX_PROMPTS = 256
MAX_CHOICES = 512


class CompletionBody(SamplingFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    prompt: str | list[str | AnyInt | list[AnyInt]]
    max_tokens: Count | None = None
    logprobs: Annotated[int, Meta(ge=0, le=5)] | None = None
    echo: bool | None = None
    best_of: Annotated[int, Meta(ge=1, le=128)] | None = None
    suffix: str | None = None


decoder = msgspec.json.Decoder(CompletionBody)


def read_completion(body: CompletionBody) -> GenerationRequest:
    """Raises: InvalidParameter naming the field that is wrong or not supported."""
    n, echo = body.n or 1, bool(body.echo)
    max_tokens = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    best_of = None if body.best_of is None or body.best_of == n else body.best_of
    if best_of is not None and best_of < n:
        raise InvalidParameter(f"best_of is {best_of} and n is {n}; it must be at least n.", param="best_of")
    if best_of is not None and body.stream:
        raise InvalidParameter("best_of above n cannot be streamed: the best is known at the end.", param="best_of")
    if echo and body.logprobs is not None:
        raise InvalidParameter("echo with logprobs is not supported.", "Ask for one of them.", param="logprobs")
    if max_tokens == 0 and not echo:
        raise InvalidParameter("max_tokens is 0; it must be at least 1 without echo.", param="max_tokens")
    prompts = _read_prompts(body.prompt)
    if body.suffix:
        prompts = tuple(_before(prompt, body.suffix) for prompt in prompts)
    if len(prompts) * (best_of or n) > MAX_CHOICES:
        raise InvalidParameter(
            f"{len(prompts)} prompts with {best_of or n} choices each are more than {MAX_CHOICES}.",
            param="n" if best_of is None else "best_of",
        )
    # The best of several are chosen by their log-probabilities, whether or not these are told.
    top_logprobs = 0 if body.logprobs is None and best_of is not None else body.logprobs
    return GenerationRequest(
        endpoint=Endpoint.COMPLETION,
        model=body.model,
        prompts=prompts,
        sampling=read_sampling(body, max_tokens=max_tokens, top_logprobs=top_logprobs),
        n=n,
        best_of=best_of,
        tells_logprobs=body.logprobs is not None,
        stops=read_stops(body.stop),
        stream=bool(body.stream),
        include_usage=include_usage(body),
        echo=echo,
    )


def _read_prompts(prompt: str | list[str | int | list[int]]) -> tuple[Prompt, ...]:
    if isinstance(prompt, str):
        return (_text(prompt),)
    if not prompt:
        raise InvalidParameter("prompt is an empty list.", param="prompt")
    if all(isinstance(item, int) for item in prompt):
        return (_tokens([item for item in prompt if isinstance(item, int)]),)
    if len(prompt) > MAX_PROMPTS:
        raise InvalidParameter(f"prompt has {len(prompt):,} entries; at most {MAX_PROMPTS} are served.", param="prompt")
    if all(isinstance(item, str) for item in prompt):
        return tuple(_text(item) for item in prompt if isinstance(item, str))
    if all(isinstance(item, list) for item in prompt):
        return tuple(_tokens(item) for item in prompt if isinstance(item, list))
    raise InvalidParameter("prompt mixes texts and token ids.", "Send one kind.", param="prompt")


def _before(prompt: Prompt, suffix: str) -> Prompt:
    if not isinstance(prompt, TextPrompt):
        raise InvalidParameter("suffix needs a prompt of text, not of token ids.", param="suffix")
    return TextPrompt(prompt.text, suffix)


def _text(text: str) -> TextPrompt:
    if not text:
        raise InvalidParameter("prompt is empty.", "Send at least one character.", param="prompt")
    return TextPrompt(text)


def _tokens(token_ids: list[int]) -> TokenPrompt:
    if not token_ids:
        raise InvalidParameter("prompt holds an empty list of token ids.", param="prompt")
    return TokenPrompt(tuple(token_ids))
