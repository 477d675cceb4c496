"""What a candidate is worth under its strategy."""

from __future__ import annotations

from daemon.planning.kv_bytes import BYTE_KINDS
from daemon.planning.profile import Profile
from daemon.planning.strategy import Goal, Strategy


def merit(profile: Profile, goal: Goal) -> float:
    """Higher is better."""
    context = profile.context_tokens
    served = min(1.0, profile.kv_tokens / max(1.0, profile.users * context * goal.mean_fill))
    if profile.strategy is Strategy.LATENCY:
        rate = profile.speed.decode_tok_s
    elif profile.strategy is Strategy.THROUGHPUT:
        rate = profile.speed.batch_tok_s * served
    elif profile.strategy is Strategy.LONG_CONTEXT:
        rate = context * 1e3 + profile.speed.decode_tok_s
    else:
        rate = (profile.speed.decode_tok_s * profile.speed.batch_tok_s) ** 0.5
    # A cache of bytes must buy more than twice the context to make up for being rounded.
    score: float = rate * (context / 1024) ** 0.5 * (0.5 if profile.kv_dtype in BYTE_KINDS else 1.0)
    return score
