"""ServingPath: a validated request's way to the engine, the same for every protocol."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import structlog

from daemon.serving.generation import ChoicePlan, Ending, Generation
from daemon.serving.live import LiveRequest, LiveRequests, RequestState
from daemon.serving.prepare import PreparedPrompt, is_quick, prepare_prompts, resolve_sampling
from daemon.serving.recent import EndedRequest, RecentRequests
from daemon.serving.request import Endpoint, GenerationRequest
from daemon.serving.reserve import reserve_tokens
from daemon.tenants.admission import Ticket
from daemon.tenants.principal import Principal
from daemon.tenants.service import TenantService
from daemon.tenants.usage import UsageSum
from engine.errors import BayardError, Cancelled, InvalidParameter

if TYPE_CHECKING:
    from daemon.router import Replica, Router
    from daemon.telemetry.metrics import Metrics

MAX_TEXT_THREADS = 4
log = structlog.get_logger(__name__)


class ServingPath:
    """Owner: the Appliance. Used on the event loop; text work runs in threads of its own."""

    def __init__(self, tenants: TenantService, router: Router, metrics: Metrics, *, max_choices: int) -> None:
        self.live = LiveRequests()
        self.recent = RecentRequests()
        self._tenants = tenants
        self._router = router
        self._metrics = metrics
        self._max_choices = max_choices
        tenants.usage.on_lost = metrics.usage_unrecorded.inc
        self._text_threads = ThreadPoolExecutor(min(MAX_TEXT_THREADS, os.cpu_count() or 1), thread_name_prefix="text")

    def close(self) -> None:
        """Let the text threads end."""
        self._text_threads.shutdown(wait=False, cancel_futures=True)

    async def open(self, request: GenerationRequest, principal: Principal, *, origin: str) -> Generation:
        """Admit, tokenise and check; nothing has reached the engine yet when this returns.

        Blocks: while the tenant's other requests fill its places
        Raises: every RequestError and AdmissionError
        """
        task = asyncio.current_task()
        assert task is not None
        live = self.live.add(_new_id(request), request, principal, origin, _canceller(task))
        ticket: Ticket | None = None
        try:
            if request.n > self._max_choices:
                raise InvalidParameter(f"n is {request.n}; at most {self._max_choices} is served here.", param="n")
            self._router.replica_for(request.model)
            ticket = await self._tenants.admission.enter(principal, request.model, request.num_choices)
            live.state = RequestState.PREPARING
            replica = self._router.replica_for(request.model)
            prompts = await self._prepare(request, replica)
            generation = self._build(live, request, principal, replica, prompts, ticket)
        except BaseException as error:
            if live.cancelled and isinstance(error, asyncio.CancelledError):
                task.uncancel()
                error = Cancelled("An operator cancelled the request.")
            self._refused(live, ticket, principal, error)
            raise error from None
        live.cancel = generation.cancel
        live.state = RequestState.WAITING
        return generation

    async def _prepare(self, request: GenerationRequest, replica: Replica) -> list[PreparedPrompt]:
        """Raises: InvalidParameter, ContextTooLong"""
        if is_quick(request, replica.text):
            return prepare_prompts(request, replica.text, replica.max_context_tokens)
        return await asyncio.get_running_loop().run_in_executor(
            self._text_threads, prepare_prompts, request, replica.text, replica.max_context_tokens
        )

    def _build(
        self,
        live: LiveRequest,
        request: GenerationRequest,
        principal: Principal,
        replica: Replica,
        prompts: list[PreparedPrompt],
        ticket: Ticket,
    ) -> Generation:
        plans = _plan_choices(request, principal, replica, prompts)
        plans = reserve_tokens(ticket, plans, named_maximum=request.sampling.max_tokens is not None)
        generation = Generation(
            live,
            replica,
            plans,
            stops=request.stops,
            continuing=request.endpoint is Endpoint.COMPLETION,
            priority=principal.priority,
            cache_salt=principal.tenant_id,
            on_end=lambda ended, ending: self._settle(ended, ending, principal, ticket),
        )
        live.worker = replica.worker
        live.prompt_tokens = generation.prompt_tokens
        live.max_tokens = sum(plan.sampling.max_tokens for plan in plans if plan.sampling)
        return generation

    def _refused(self, live: LiveRequest, ticket: Ticket | None, principal: Principal, error: BaseException) -> None:
        self.live.remove(live.id)
        if ticket is not None:
            ticket.release()
        served = live.model if live.model in self._router.models() else "unknown"
        outcome = error.code if isinstance(error, BayardError) else "abort"
        self._metrics.request_ended(served, outcome)
        self.recent.add(EndedRequest(time.monotonic(), refused=outcome != "abort"))
        if served != "unknown":
            self._tenants.usage.add(principal, live.model, UsageSum(requests=1, errors=int(outcome != "abort")))

    def _settle(self, generation: Generation, ending: Ending, principal: Principal, ticket: Ticket) -> None:
        live, usage = generation.live, ending.usage
        self.live.remove(live.id)
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
        self.recent.add(
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
        if ending.error is not None:
            log.warning(
                "request_failed",
                request=live.id,
                tenant=live.tenant,
                model=live.model,
                worker=live.worker,
                code=ending.error.code,
                after_s=round(time.monotonic() - live.started_mono, 3),
            )


def _new_id(request: GenerationRequest) -> str:
    return request.endpoint.id_prefix + secrets.token_hex(12)


def _canceller(task: asyncio.Task[object]) -> Callable[[], Awaitable[None]]:
    async def cancel() -> None:
        task.cancel()

    return cancel


def _plan_choices(
    request: GenerationRequest, principal: Principal, replica: Replica, prompts: list[PreparedPrompt]
) -> list[ChoicePlan]:
    plans: list[ChoicePlan] = []
    for at, prompt in enumerate(prompts):
        for choice in range(request.n):
            sampling = resolve_sampling(
                request, len(prompt.token_ids), replica.max_context_tokens, principal.limits, replica.text, choice
            )
            nothing = request.sampling.max_tokens == 0
            plans.append(ChoicePlan(at, prompt.token_ids, None if nothing else sampling, prompt.echo))
    return plans
