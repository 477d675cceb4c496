"""Setting a request's tokens aside before anything of it reaches an engine."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from daemon.serving.generation import ChoicePlan
from daemon.tenants.admission import Ticket
from engine.messages import SamplingParams


def reserve_tokens(ticket: Ticket, plans: list[ChoicePlan], *, named_maximum: bool) -> list[ChoicePlan]:
    """The plans as the tenant's rate and quotas allow them.

    Where the client named no maximum, what the quotas leave is shared evenly among the choices.
    Raises: QuotaExceeded
    """
    prompt_tokens = sum({plan.prompt: len(plan.token_ids) for plan in plans}.values())
    making = [plan.sampling for plan in plans if plan.sampling is not None]
    asked = sum(sampling.max_tokens for sampling in making)
    granted = ticket.reserve(prompt_tokens, asked, flexible=not named_maximum)
    if granted >= asked:
        return plans
    most = max(1, granted // len(making))
    return [plan if plan.sampling is None else replace(plan, sampling=_cut(plan.sampling, most)) for plan in plans]


def _cut(sampling: SamplingParams, most: int) -> SamplingParams:
    return msgspec.structs.replace(
        sampling, max_tokens=min(sampling.max_tokens, most), min_tokens=min(sampling.min_tokens, most)
    )
