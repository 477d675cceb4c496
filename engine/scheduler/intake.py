"""What a submitted request must be before it may wait: one that can never run is refused at once, with both numbers."""

from __future__ import annotations

import math

import msgspec

from engine.errors import ContextTooLong, DeadlineExceeded, InvalidParameter
from engine.kv.manager import SequencePages
from engine.messages import LEAST_REPETITION, MOST_REPETITION, Embed, SamplingParams, Submit
from engine.scheduler.request import Request

# What no arithmetic of the choice leaves float32 with. None, where a field has it, is not looked at.
_RANGES: dict[str, tuple[float, float]] = {
    "max_tokens": (1, math.inf),
    "min_tokens": (0, math.inf),
    "temperature": (0.0, 1e6),
    "top_k": (0, math.inf),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (LEAST_REPETITION, MOST_REPETITION),
    "presence_penalty": (-1e6, 1e6),
    "frequency_penalty": (-1e6, 1e6),
    "top_logprobs": (0, math.inf),
}
_BIAS_LIMIT = 1e9


def check(submit: Submit, *, vocab_size: int, max_context_tokens: int) -> None:
    """Raises: InvalidParameter, ContextTooLong or DeadlineExceeded if it can never run."""
    prompt = submit.prompt_token_ids
    if not prompt:
        raise InvalidParameter("The prompt has no tokens.", "Send at least one token.", param="prompt")
    stranger = next((token for token in (min(prompt), max(prompt)) if not 0 <= token < vocab_size), None)
    if stranger is not None:
        raise InvalidParameter(
            f"Token ids must lie in 0..{vocab_size - 1}; the prompt has {stranger}.",
            "Tokenise with this model's own tokenizer.",
            param="prompt",
        )
    if len(prompt) >= max_context_tokens:
        raise ContextTooLong(
            f"The prompt has {len(prompt):,} tokens; this model's place here holds {max_context_tokens:,} "
            "with at least one for the answer.",
            "Shorten the prompt.",
            param="messages",
        )
    check_turn(submit.weight, submit.deadline_s)
    _check_sampling(submit.sampling, vocab_size)


def check_turn(weight: float, deadline_s: float | None) -> None:
    """Raises: InvalidParameter or DeadlineExceeded unless a turn can be given by them."""
    if not 0 < weight < math.inf:
        raise InvalidParameter(f"The weight is {weight}.", "Give a finite number above 0.", param="weight")
    if deadline_s is not None and not math.isfinite(deadline_s):
        raise InvalidParameter(f"deadline_s is {deadline_s}.", "Give seconds, or leave it out.", param="deadline_s")
    if deadline_s is not None and deadline_s <= 0:
        raise DeadlineExceeded(f"The request came with {deadline_s} s left.", "Give it more time.")


def _check_sampling(sampling: SamplingParams, vocab_size: int) -> None:
    """A number that cannot be drawn by would fail the step of all who share it, or draw anything in silence."""
    for name, (low, high) in _RANGES.items():
        value = getattr(sampling, name)
        if value is not None and not low <= value <= high:
            bounds = f"be {low} or more" if high == math.inf else f"lie between {low:g} and {high:g}"
            raise InvalidParameter(f"{name} is {value}; it must {bounds}.", param=name)
    if sampling.top_p == 0.0:
        raise InvalidParameter("top_p is 0, which leaves no token.", "Give a number above 0.", param="top_p")
    for token, bias in (sampling.logit_bias or {}).items():
        if not 0 <= token < vocab_size:
            raise InvalidParameter(
                f"logit_bias names token {token}; the model's lie in 0..{vocab_size - 1}.", param="logit_bias"
            )
        if not -_BIAS_LIMIT <= bias <= _BIAS_LIMIT:
            raise InvalidParameter(
                f"logit_bias of token {token} is {bias}; it must lie between {-_BIAS_LIMIT:g} and {_BIAS_LIMIT:g}.",
                param="logit_bias",
            )
    if sampling.stop_token_ids and min(sampling.stop_token_ids) < 0:
        raise InvalidParameter(
            f"stop_token_ids has {min(sampling.stop_token_ids)}; a token id is 0 or more.", param="stop_token_ids"
        )


def with_stops_within(submit: Submit, vocab_size: int) -> Submit:
    """Without stop tokens that the model has no logit for: a tokenizer may know more tokens, which never come."""
    sampling = submit.sampling
    stops = tuple(token for token in sampling.stop_token_ids if token < vocab_size)
    if len(stops) == len(sampling.stop_token_ids):
        return submit
    return msgspec.structs.replace(submit, sampling=msgspec.structs.replace(sampling, stop_token_ids=stops))


def check_group(submit: Submit, member: Request) -> None:
    """Raises: InvalidParameter unless the request may share a prompt with that member of its group."""
    same = (
        member.tenant == submit.tenant
        and member.pages.salt == submit.cache_salt
        and member.adapter == submit.adapter
        and member.token_ids[: member.num_prompt] == submit.prompt_token_ids
    )
    if not same:
        raise InvalidParameter(
            f"Group {submit.prompt_group} has requests of another prompt, tenant or adapter.",
            "Use a group's name for one prompt alone.",
            param="prompt_group",
        )


def request_of(submit: Submit, seed: int, order: int, pages: SequencePages, now: float) -> Request:
    return Request(
        submit.request_id,
        list(submit.prompt_token_ids),
        len(submit.prompt_token_ids),
        submit.sampling,
        seed,
        submit.priority,
        order,
        pages,
        tenant=submit.tenant,
        weight=submit.weight,
        group=submit.prompt_group,
        adapter=submit.adapter,
        deadline_mono=None if submit.deadline_s is None else now + submit.deadline_s,
    )


def submit_of(embed: Embed) -> Submit:
    """An embedding's text as a request that ends with its prompt."""
    return Submit(
        embed.request_id,
        embed.prompt_token_ids,
        SamplingParams(max_tokens=1, temperature=0.0),
        embed.priority,
        cache_salt=f"embed:{embed.tenant}",
        tenant=embed.tenant,
        weight=embed.weight,
        deadline_s=embed.deadline_s,
        adapter=embed.adapter,
    )
