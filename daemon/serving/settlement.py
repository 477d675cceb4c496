"""Settlement: what a request leaves behind when it ends, whatever it asked for: usage, metrics, a line of the log."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from daemon.serving.events import TokenUsage
from daemon.serving.live import LiveRequest, LiveRequests
from daemon.serving.recent import EndedRequest, RecentRequests
from daemon.tenants.admission import Ticket
from daemon.tenants.principal import Principal
from daemon.tenants.service import TenantService
from daemon.tenants.usage import UsageSum
from engine.errors import BayardError

if TYPE_CHECKING:
    from daemon.router import Router
    from daemon.telemetry.metrics import Metrics
    from daemon.telemetry.tracing import SpanSink

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Ending:
    """How a request ended, for those who count. outcome: stop, length, abort, or an error's code."""

    outcome: str
    usage: TokenUsage
    error: BayardError | None = None


class Settlement:
    """Owner: the Appliance. Event loop only."""

    def __init__(
        self, tenants: TenantService, router: Router, metrics: Metrics, live: LiveRequests, recent: RecentRequests
    ) -> None:
        self._tenants = tenants
        self._router = router
        self._metrics = metrics
        self._live = live
        self._recent = recent
        self.spans: SpanSink | None = None  # set where traces are wanted

    def refused(self, live: LiveRequest, ticket: Ticket | None, principal: Principal, error: BaseException) -> None:
        """It ended before anything of it reached an engine."""
        self._live.remove(live.id)
        if ticket is not None:
            ticket.release()
        served = live.model if live.model in self._router.models() else "unknown"
        outcome = error.code if isinstance(error, BayardError) else "abort"
        self._metrics.request_ended(served, outcome)
        self._recent.add(EndedRequest(time.monotonic(), refused=outcome != "abort"))
        if served != "unknown":
            self._tenants.usage.add(principal, live.model, UsageSum(requests=1, errors=int(outcome != "abort")))

    def ended(self, live: LiveRequest, ticket: Ticket, principal: Principal, ending: Ending) -> None:
        """Once for each request that was admitted."""
        usage = ending.usage
        self._live.remove(live.id)
        ticket.release(usage.total_tokens)
        self._metrics.request_ended(
            live.model,
            ending.outcome,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            output_tokens=usage.completion_tokens,
            ttft_s=live.first_token_s,
            total_s=live.age_s,
        )
        self._tenants.usage.add(
            principal,
            live.model,
            UsageSum(
                requests=1,
                errors=int(ending.error is not None),
                prompt_tokens=usage.prompt_tokens,
                cached_tokens=usage.cached_tokens,
                output_tokens=usage.completion_tokens,
                device_s=usage.device_s,
            ),
        )
        self._recent.add(
            EndedRequest(
                time.monotonic(),
                failed=ending.error is not None,
                prompt_tokens=usage.prompt_tokens,
                cached_tokens=usage.cached_tokens,
                output_tokens=usage.completion_tokens,
                ttft_s=live.first_token_s,
                inter_token_s=live.inter_token_s,
            )
        )
        if self.spans is not None:
            self.spans.ended(live, ending)
        if ending.error is not None:
            fault = ending.error.http_status >= 500  # the rest is the client's own, and told to it
            (log.warning if fault else log.info)(
                "request_failed",
                request=live.id,
                tenant=live.tenant,
                model=live.model,
                worker=live.worker,
                code=ending.error.code,
                after_s=round(time.monotonic() - live.started_mono, 3),
            )
