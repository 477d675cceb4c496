"""ServingPath: a validated request's way to the engine, the same for every protocol."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from daemon.serving.generation import ChoicePlan, Generation, Terms
from daemon.serving.live import LiveRequest, LiveRequests, RequestState
from daemon.serving.output import choice_parser
from daemon.serving.prepare import PreparedPrompt, is_quick, prepare_prompts, resolve_sampling
from daemon.serving.recent import RecentRequests
from daemon.serving.request import Endpoint, GenerationRequest
from daemon.serving.reserve import reserve_tokens
from daemon.serving.retry import Retry
from daemon.serving.settlement import Settlement
from daemon.serving.waiting import OnWait, replica_when_ready, unheard
from daemon.tenants.admission import Ticket
from daemon.tenants.principal import Principal
from daemon.tenants.service import TenantService
from engine.errors import Cancelled, DeadlineExceeded, InvalidParameter

if TYPE_CHECKING:
    from daemon.router import Replica, Router
    from daemon.telemetry.metrics import Metrics

MAX_TEXT_THREADS = 4
RETRY_WITHIN_S = 30.0


class ServingPath:
    """Owner: the Appliance. Used on the event loop; text work runs in threads of its own."""

    def __init__(
        self,
        tenants: TenantService,
        router: Router,
        metrics: Metrics,
        *,
        max_choices: int,
        retry_within_s: float = RETRY_WITHIN_S,
        model_wait_s: float = 0.0,
    ) -> None:
        self.live = LiveRequests()
        self.recent = RecentRequests()
        self.settlement = Settlement(tenants, router, metrics, self.live, self.recent)
        self._tenants = tenants
        self._router = router
        self._max_choices = max_choices
        self._retry_within_s = retry_within_s
        self._model_wait_s = model_wait_s
        tenants.usage.on_lost = metrics.usage_unrecorded.inc
        self._text_threads = ThreadPoolExecutor(min(MAX_TEXT_THREADS, os.cpu_count() or 1), thread_name_prefix="text")

    def close(self) -> None:
        """Let the text threads end."""
        self._text_threads.shutdown(wait=False, cancel_futures=True)

    async def open(
        self, request: GenerationRequest, principal: Principal, *, origin: str, on_wait: OnWait = unheard
    ) -> Generation:
        """Admit, tokenise and check; nothing has reached the engine yet when this returns.

        on_wait: told what a request waits for whose model is being loaded
        Blocks: while the model is on its way, while the tenant's other requests fill its places
        Raises: every RequestError and AdmissionError
        """
        task = asyncio.current_task()
        assert task is not None
        live = self.live.add(_new_id(request), request, principal, origin, _canceller(task))
        ticket: Ticket | None = None
        try:
            self._check_choices(request)
            # Before the model is looked for, which may load it.
            self._tenants.admission.check_model(principal, request.model)
            async with _until_deadline(request, live):
                _check_generates(await self._replica(request, on_wait))
                ticket = await self._tenants.admission.enter(principal, request.model, request.num_choices)
            live.state = RequestState.PREPARING
            async with _until_deadline(request, live):
                replica = await self._replica(request, on_wait)
            prompts = await self._prepare(request, replica)
            generation = self._build(live, request, principal, replica, prompts, ticket)
        except BaseException as error:
            if live.cancelled and isinstance(error, asyncio.CancelledError):
                task.uncancel()
                error = Cancelled("An operator cancelled the request.")
            self.settlement.refused(live, ticket, principal, error)
            raise error from None
        live.cancel = generation.cancel
        live.state = RequestState.WAITING
        return generation

    async def _replica(self, request: GenerationRequest, on_wait: OnWait) -> Replica:
        """Blocks: while one is on its way. Raises: NotReady, ModelNotFound"""
        return await replica_when_ready(
            lambda: self._router.replica_for(request.model),
            self._model_wait_s,
            on_wait,
            lambda: not self._tenants.admission.draining,
        )

    def _check_choices(self, request: GenerationRequest) -> None:
        """Raises: InvalidParameter"""
        for name, asked in (("n", request.n), ("best_of", request.candidates)):
            if asked > self._max_choices:
                raise InvalidParameter(f"{name} is {asked}; at most {self._max_choices} is served here.", param=name)

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
        plans = _plan_choices(request, principal, replica, prompts, live.id)
        named_maximum = request.sampling.max_tokens is not None and not request.clamp_max_tokens
        plans = reserve_tokens(ticket, plans, named_maximum=named_maximum)
        terms = Terms(
            stops=request.stops,
            continuing=request.endpoint is Endpoint.COMPLETION,
            one_call=request.tools is not None and not request.tools.parallel,
            tenant=principal.tenant_id,
            priority=principal.priority,
            weight=principal.limits.weight,
            adapter=replica.adapter,
            deadline_mono=None if request.deadline_s is None else live.started_mono + request.deadline_s,
            constraint_param=_constraint_param(request),
        )
        generation = Generation(
            live,
            replica,
            plans,
            terms,
            on_end=lambda ended, ending: self.settlement.ended(ended.live, ticket, principal, ending),
            retry=Retry(
                find=lambda: self._router.replica_for(request.model),
                wanted=lambda: not (live.cancelled or self._tenants.admission.draining),
                within_s=self._retry_within_s,
            ),
        )
        live.worker = replica.worker
        live.prompt_tokens = generation.prompt_tokens
        live.max_tokens = sum(plan.sampling.max_tokens for plan in plans if plan.sampling)
        return generation


def _new_id(request: GenerationRequest) -> str:
    return request.endpoint.id_prefix + secrets.token_hex(12)


def _canceller(task: asyncio.Task[object]) -> Callable[[], Awaitable[None]]:
    async def cancel() -> None:
        task.cancel()

    return cancel


def _check_generates(replica: Replica) -> None:
    """Raises: InvalidParameter"""
    if not replica.generates:
        raise InvalidParameter(
            f"The model {replica.model} makes embeddings; it writes no text.",
            "Send it to /v1/embeddings, or ask for a model that generates.",
            param="model",
        )


@asynccontextmanager
async def _until_deadline(request: GenerationRequest, live: LiveRequest) -> AsyncGenerator[None, None]:
    """Raises: DeadlineExceeded when the request's time is over while it waits."""
    try:
        async with asyncio.timeout(None if request.deadline_s is None else max(0.0, request.deadline_s - live.age_s)):
            yield
    except TimeoutError:
        raise DeadlineExceeded(
            f"The request waited for {live.age_s:.1f} s; its deadline was {request.deadline_s:.1f} s.",
            "Allow more time, or try again when less is going on.",
        ) from None


def _plan_choices(
    request: GenerationRequest, principal: Principal, replica: Replica, prompts: list[PreparedPrompt], request_id: str
) -> list[ChoicePlan]:
    plans: list[ChoicePlan] = []
    for at, prompt in enumerate(prompts):
        for choice in range(request.candidates):
            sampling = resolve_sampling(
                request, prompt, replica.max_context_tokens, principal.limits, replica.text, choice
            )
            nothing = request.sampling.max_tokens == 0
            plans.append(
                ChoicePlan(
                    at,
                    prompt.token_ids,
                    None if nothing else sampling,
                    prompt.echo,
                    choice_parser(request, replica.text, prompt.token_ids),
                    f"{request_id}.p{at}" if request.candidates > 1 else "",
                )
            )
    return plans


def _constraint_param(request: GenerationRequest) -> str | None:
    """The field to blame for a grammar that the worker cannot compile."""
    if request.constraint is not None:
        return request.constraint.param
    return "tools" if request.tools is not None and request.tools.bound else None
