"""GET metrics/summary: the last minutes in a few figures."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter

from daemon.api.admin.access import Services, Viewer
from daemon.api.admin.answers import Answer

router = APIRouter(tags=["metrics"])


class SummaryAnswer(Answer):
    """Of the last window_s seconds; pages as they are now. None: nothing was measured."""

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
    kv_pages_used: int | None
    kv_pages_cached: int | None
    kv_pages_total: int | None


@router.get("/metrics/summary")
async def get_summary(services: Services, caller: Viewer) -> SummaryAnswer:
    stats = [view.stats for view in services.supervisor.views() if view.stats is not None]
    return SummaryAnswer(
        **asdict(services.serving.recent.summary()),
        kv_pages_used=sum(stat.kv_pages_active for stat in stats) if stats else None,
        kv_pages_cached=sum(stat.kv_pages_cached for stat in stats) if stats else None,
        kv_pages_total=sum(stat.kv_pages_total for stat in stats) if stats else None,
    )
