"""Load: what one model's workers are asked to do, smoothed, from the counters of successive moments."""

from __future__ import annotations

import math
from dataclasses import dataclass

from daemon.workers.view import WorkerView

SMOOTHING_S = 10.0  # a change is seen to two thirds after so long
_QUICK_SHARE = 1 / 3  # of that, for the arrivals of this moment
_FEWEST_ARRIVALS = 4.0  # within the smoothing: fewer show no direction
_STEEPEST = 2.0
RISING = 1.1  # a rise above this is one, and not chance


@dataclass(frozen=True, slots=True)
class LoadSample:
    """Counters at one moment; totals are of the present process."""

    at_mono: float
    pid: int | None
    submitted_total: int
    inflight: int
    running: int
    waiting: int
    prompt_tokens_total: int
    output_tokens_total: int
    pages_share: float  # of all KV pages, what live requests hold

    @classmethod
    def of(cls, view: WorkerView, now_mono: float) -> LoadSample | None:
        """None where the worker has said nothing yet."""
        stats = view.stats
        if stats is None:
            return None
        share = stats.kv_pages_active / stats.kv_pages_total if stats.kv_pages_total else 0.0
        return cls(
            now_mono,
            view.pid,
            view.submitted_total,
            max(view.inflight, stats.running + stats.waiting),
            stats.running,
            stats.waiting,
            stats.prompt_tokens_total,
            stats.output_tokens_total,
            share,
        )


@dataclass(slots=True)
class Load:
    """Exponentially weighted means. Mutable. Owner: one model's entry in the LoadController."""

    smoothing_s: float = SMOOTHING_S
    demand: float = 0.0  # streams that run or wait
    queue: float = 0.0
    running: float = 0.0
    arrivals_per_s: float = 0.0
    arrivals_now_per_s: float = 0.0  # smoothed over a shorter time: what differs is the slope
    prompt_tok_s: float = 0.0
    output_tok_s: float = 0.0
    pages_share: float = 0.0
    last: LoadSample | None = None
    earlier: LoadSample | None = None  # the one before it

    @property
    def rise(self) -> float:
        """Arrivals of this moment to those of the smoothing time: 1 where they do not rise, at most 2."""
        if self.arrivals_per_s * self.smoothing_s < _FEWEST_ARRIVALS:
            return 1.0
        return min(_STEEPEST, max(1.0, self.arrivals_now_per_s / self.arrivals_per_s))

    def has_risen_from(self, arrivals_per_s: float) -> bool:
        """Whether more come than then, and by more than chance makes of it."""
        chance = max((RISING - 1.0) * arrivals_per_s, _FEWEST_ARRIVALS / self.smoothing_s)
        return self.arrivals_per_s - arrivals_per_s > chance

    @property
    def expected(self) -> float:
        """Streams that are wanted soon, if arrivals go on as they do now."""
        return self.demand * self.rise

    @property
    def steady(self) -> float:
        """Streams that were there at both of the last two looks."""
        if self.last is None or self.earlier is None:
            return 0.0
        return float(min(self.last.inflight, self.earlier.inflight))

    def pressing(self, allowed: int) -> float:
        """Streams that want a place, of which `allowed` have one.

        The mean with its slope, or what was there at two looks; a queue as long as all places counts at the first one.
        """
        found = max(self.expected, self.steady)
        if self.last is not None and self.last.waiting >= allowed:
            found = max(found, float(self.last.inflight))
        return found

    def forget_past(self) -> None:
        """What was let in before is through: the means are of this moment."""
        if self.last is not None:
            self.demand = self.steady
            self.running, self.queue = float(self.last.running), float(self.last.waiting)

    def note(self, sample: LoadSample) -> None:
        """Take one more moment into account. A new process, or a clock that stood still, begins its rates anew."""
        last, self.last, self.earlier = self.last, sample, self.last
        if last is None:
            self.demand, self.queue, self.running = float(sample.inflight), float(sample.waiting), float(sample.running)
            self.pages_share = sample.pages_share
            return
        elapsed_s = sample.at_mono - last.at_mono
        if elapsed_s <= 0:
            self.last = last
            return
        weight = 1.0 - math.exp(-elapsed_s / self.smoothing_s)
        self.demand += weight * (sample.inflight - self.demand)
        self.queue += weight * (sample.waiting - self.queue)
        self.running += weight * (sample.running - self.running)
        self.pages_share += weight * (sample.pages_share - self.pages_share)
        if sample.pid != last.pid or sample.output_tokens_total < last.output_tokens_total:
            return  # totals of another process
        arrived = (sample.submitted_total - last.submitted_total) / elapsed_s
        prompt = (sample.prompt_tokens_total - last.prompt_tokens_total) / elapsed_s
        output = (sample.output_tokens_total - last.output_tokens_total) / elapsed_s
        self.arrivals_per_s += weight * (arrived - self.arrivals_per_s)
        quick = 1.0 - math.exp(-elapsed_s / (self.smoothing_s * _QUICK_SHARE))
        self.arrivals_now_per_s += quick * (arrived - self.arrivals_now_per_s)
        self.prompt_tok_s += weight * (prompt - self.prompt_tok_s)
        self.output_tok_s += weight * (output - self.output_tok_s)

    def __str__(self) -> str:
        rising = ", rising" if self.rise > RISING else ""
        return (
            f"{self.demand:.1f} streams wanted ({self.running:.1f} run, {self.queue:.1f} wait), "
            f"{self.arrivals_per_s:.2f} requests/s{rising}, "
            f"{self.prompt_tok_s:,.0f} prompt and {self.output_tok_s:,.0f} output tok/s"
        )
