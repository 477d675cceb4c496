"""The requests that ended lately, for the console's summary: figures of a moving window, exact within it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

WINDOW_S = 300.0
MAX_RECORDS = 20_000


@dataclass(frozen=True, slots=True)
class EndedRequest:
    """refused: turned away before it reached an engine."""

    ended_mono: float
    failed: bool = False
    refused: bool = False
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    ttft_s: float | None = None
    inter_token_s: float | None = None


@dataclass(frozen=True, slots=True)
class WindowSummary:
    """Of the last window_s seconds. None: nothing was measured."""

    window_s: float
    requests_done: int
    requests_failed: int
    requests_rejected: int
    prompt_tok_s: float
    output_tok_s: float
    prefix_hit_ratio: float | None
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    itl_p50_s: float | None
    itl_p95_s: float | None


class RecentRequests:
    """Owner: the ServingPath. When more end than are kept, the window becomes shorter, and says so."""

    def __init__(
        self,
        window_s: float = WINDOW_S,
        max_records: int = MAX_RECORDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._window_s = window_s
        self._clock = clock
        self._since_mono = clock()
        self._records: deque[EndedRequest] = deque(maxlen=max_records)

    def add(self, record: EndedRequest) -> None:
        if len(self._records) == self._records.maxlen:
            self._since_mono = self._records[0].ended_mono
        self._records.append(record)

    def summary(self) -> WindowSummary:
        """Blocks: a few milliseconds when many are kept."""
        now = self._clock()
        start = max(now - self._window_s, self._since_mono)
        while self._records and self._records[0].ended_mono < now - self._window_s:
            self._records.popleft()
        records = list(self._records)
        window_s = max(now - start, 1e-9)
        prompt = sum(record.prompt_tokens for record in records)
        cached = sum(record.cached_tokens for record in records)
        first = sorted(record.ttft_s for record in records if record.ttft_s is not None)
        between = sorted(record.inter_token_s for record in records if record.inter_token_s is not None)
        return WindowSummary(
            window_s=window_s,
            requests_done=sum(not record.failed and not record.refused for record in records),
            requests_failed=sum(record.failed for record in records),
            requests_rejected=sum(record.refused for record in records),
            prompt_tok_s=prompt / window_s,
            output_tok_s=sum(record.output_tokens for record in records) / window_s,
            prefix_hit_ratio=cached / prompt if prompt else None,
            ttft_p50_s=_quantile(first, 0.5),
            ttft_p95_s=_quantile(first, 0.95),
            itl_p50_s=_quantile(between, 0.5),
            itl_p95_s=_quantile(between, 0.95),
        )


def _quantile(values: list[float], share: float) -> float | None:
    """The nearest rank of sorted values."""
    return values[min(len(values) - 1, int(share * len(values)))] if values else None
