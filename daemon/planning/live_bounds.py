"""LiveBounds: how far measured load may move the knobs of a plan's running worker, and the way between the ends."""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import InvalidParameter
from engine.messages import Knobs

_SHORTEST_DWELL_S = 1.0
_LONGEST_DWELL_S = 3600.0


@dataclass(frozen=True, slots=True)
class LiveBounds:
    """Both ends hold within the memory that the profile states."""

    latency: Knobs  # few streams, short pauses
    throughput: Knobs  # many streams, long chunks
    dwell_s: float = 15.0  # at least so long between a move and one back to fewer streams

    def at(self, position: float) -> Knobs:
        """The knobs between the ends: 0 is the latency end, 1 the throughput end; counts grow by ratio."""
        if position <= 0.0:
            return self.latency
        if position >= 1.0:
            return self.throughput
        few, many = self.latency, self.throughput
        nearest = few if position < 0.5 else many
        running = _between(few.max_running, many.max_running, position)
        chunk = _between(few.prefill_chunk, many.prefill_chunk, position)
        few_ms, many_ms = few.max_step_ms, many.max_step_ms
        return Knobs(
            max_running=running,
            token_budget=max(running, _between(few.token_budget, many.token_budget, position)),
            prefill_chunk=chunk,
            prefix_cache=nearest.prefix_cache,
            ahead_tokens=round(few.ahead_tokens + position * (many.ahead_tokens - few.ahead_tokens)),
            speculation_tokens=round(
                few.speculation_tokens + position * (many.speculation_tokens - few.speculation_tokens)
            ),
            cache_share=nearest.cache_share,
            # 0 means no limit, so there is no way between it and one
            max_step_ms=round(few_ms * (many_ms / few_ms) ** position, 1)
            if few_ms and many_ms
            else nearest.max_step_ms,
        )

    def check(self) -> None:
        """Raises: InvalidParameter"""
        few, many = self.latency.max_running, self.throughput.max_running
        if few > many:
            raise InvalidParameter(
                f"the latency end allows {few:,} streams, more than the throughput end's {many:,}.",
                "Exchange the two.",
                param="streams",
            )
        if not _SHORTEST_DWELL_S <= self.dwell_s <= _LONGEST_DWELL_S:
            raise InvalidParameter(
                f"a dwell of {self.dwell_s:g} s is not between {_SHORTEST_DWELL_S:g} and {_LONGEST_DWELL_S:g} s.",
                "15 s is usual.",
                param="dwell",
            )


def _between(few: int, many: int, position: float) -> int:
    share: float = (many / few) ** position
    return max(1, round(few * share))
