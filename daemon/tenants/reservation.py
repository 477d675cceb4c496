"""A request's tokens, set aside in its tenant's rate and quotas until it is known how many it used."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from daemon.tenants.limits import Bucket
from daemon.tenants.principal import Principal
from daemon.tenants.quota import Quota, Quotas, Window
from engine.errors import QuotaExceeded

_BUSY_RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class Reservation:
    """Settle exactly once. rate_tokens were taken from the rate of a minute."""

    tokens: int
    rate_tokens: int
    output_tokens: int
    windows: tuple[Window, ...]

    def settle(self, rate: Bucket | None, used_tokens: int) -> None:
        """Mutates: the windows it was made in, and the rate as it is now."""
        for window in self.windows:
            window.settle(self.tokens, used_tokens)
        if rate is not None:
            if used_tokens > self.rate_tokens:
                rate.take(used_tokens - self.rate_tokens)
            else:
                rate.give_back(self.rate_tokens - used_tokens)


def reserve(
    principal: Principal,
    rate: Bucket | None,
    quotas: Quotas,
    now: datetime,
    prompt_tokens: int,
    output_tokens: int,
    least_output_tokens: int,
) -> Reservation:
    """Nothing is taken unless all of it is there.

    The output may be cut down to what the quotas leave, but not below least_output_tokens; a rate is waited for.
    Raises: QuotaExceeded
    """
    limits = principal.limits
    asked = bool(prompt_tokens or output_tokens)
    for quota, limit in zip(quotas.both(), (limits.tokens_per_day, limits.tokens_per_month), strict=True):
        if limit is None or not asked:
            continue
        window = quota.window(now)
        left = limit - window.used - window.reserved
        output_tokens = min(output_tokens, max(least_output_tokens, left - prompt_tokens))
        if prompt_tokens + output_tokens > left:
            raise _spent(principal, quota, window, limit, prompt_tokens + output_tokens, now)
    tokens = prompt_tokens + output_tokens
    if rate is not None and asked:
        wait_s = rate.wait_s(tokens)
        if wait_s > 0:
            raise QuotaExceeded(
                f"tenant {principal.tenant_name} may use {rate.per_minute:,} tokens a minute; this request may need "
                f"{tokens:,} and {rate.figure('tokens').remaining:,} are left.",
                f"Try again in {wait_s:.1f} s, or ask for fewer output tokens.",
                retry_after_s=wait_s,
            )
        rate.take(tokens)
    windows = tuple(quota.window(now) for quota in quotas.both())
    for window in windows:
        window.reserved += tokens
    return Reservation(tokens, tokens if rate is not None else 0, output_tokens, windows)


def _spent(principal: Principal, quota: Quota, window: Window, limit: int, needed: int, now: datetime) -> QuotaExceeded:
    others_hold_it = window.reserved > 0 and window.used + needed <= limit
    reset_s = quota.resets_in_s(now)
    return QuotaExceeded(
        f"tenant {principal.tenant_name} may use {limit:,} tokens a {quota.period}; {window.used:,} are used, "
        f"{window.reserved:,} are set aside for running requests, and this one may need {needed:,}.",
        "Try again when one of them has ended, or ask for fewer output tokens."
        if others_hold_it
        else f"The {quota.period}'s count starts anew in {reset_s / 3600:.1f} h (UTC).",
        retry_after_s=_BUSY_RETRY_S if others_hold_it else reset_s,
    )
