"""What a submitted request must be before it may wait: one that can never run is refused at once, with both numbers."""

from __future__ import annotations

from engine.errors import ContextTooLong, DeadlineExceeded, InvalidParameter
from engine.kv.manager import SequencePages
from engine.messages import Embed, SamplingParams, Submit
from engine.scheduler.request import Request


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
    if not submit.weight > 0:
        raise InvalidParameter(f"The weight is {submit.weight}.", "Give a number above 0.", param="weight")
    if submit.deadline_s is not None and not submit.deadline_s > 0:
        raise DeadlineExceeded(f"The request came with {submit.deadline_s} s left.", "Give it more time.")


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
