"""GET requests[/{id}] and POST requests/{id}/cancel: who is being served now. Their text is never shown."""

from __future__ import annotations

from datetime import datetime

from fastapi import APIRouter

from daemon.api.admin.access import Operator, Services, Viewer
from daemon.api.admin.answers import Answer, Consequences, Item
from daemon.serving.live import LiveRequest
from engine.errors import NotFound

router = APIRouter(tags=["requests"])
MAX_ITEMS = 500


class RequestItem(Item):
    """state: queued (at the door), preparing, waiting (in the engine), decode."""

    id: str
    tenant: str
    key: str
    model: str
    worker: str | None
    origin: str
    stream: bool
    state: str
    prompt_tokens: int | None
    output_tokens: int
    max_tokens: int | None
    first_token_s: float | None
    inter_token_s: float | None
    age_s: float
    started_at: datetime


class RequestsAnswer(Answer):
    """total counts all; items are the oldest."""

    items: list[RequestItem]
    total: int


class RequestAnswer(Answer):
    item: RequestItem


@router.get("/requests")
async def get_requests(services: Services, caller: Viewer) -> RequestsAnswer:
    found = services.serving.live.all()
    return RequestsAnswer(items=[_item(live) for live in found[:MAX_ITEMS]], total=len(found))


@router.get("/requests/{request_id}")
async def get_request(request_id: str, services: Services, caller: Viewer) -> RequestAnswer:
    live = services.serving.live.get(request_id)
    if live is None:
        raise NotFound(f"There is no request {request_id!r} here now.", "It may have ended already.")
    return RequestAnswer(item=_item(live))


@router.post("/requests/{request_id}/cancel")
async def post_cancel(
    request_id: str, services: Services, caller: Operator, dry_run: bool = False
) -> RequestAnswer | Consequences:
    """End it in the engine; its client gets one error event."""
    if dry_run:
        found = (await get_request(request_id, services, caller)).item
        told = f"request {found.id} of tenant {found.tenant} ends with an error after {found.output_tokens:,} tokens"
        return Consequences(consequences=[told], in_flight=1)
    live = await services.serving.live.cancel(request_id)
    await services.tenants.record(caller.actor, "request.cancel", f"request:{request_id}", {"tenant": live.tenant})
    return RequestAnswer(item=_item(live))


def _item(live: LiveRequest) -> RequestItem:
    return RequestItem(
        id=live.id,
        tenant=live.tenant,
        key=live.key_prefix,
        model=live.model,
        worker=live.worker,
        origin=live.origin,
        stream=live.stream,
        state=live.state.value,
        prompt_tokens=live.prompt_tokens,
        output_tokens=live.output_tokens,
        max_tokens=live.max_tokens,
        first_token_s=live.first_token_s,
        inter_token_s=live.inter_token_s,
        age_s=live.age_s,
        started_at=live.started_at,
    )
