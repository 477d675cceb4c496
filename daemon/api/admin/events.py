"""GET events: changes of state as a list, or as a stream that resumes after the last id seen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from fastapi.responses import StreamingResponse

from daemon.api.admin.access import Services, Viewer
from daemon.api.admin.answers import Answer, Item
from daemon.events import Event, EventLog

router = APIRouter(tags=["events"])
COMMENT_AFTER_S = 10.0
_SSE = "text/event-stream"


class EventItem(Item):
    id: int
    at: datetime
    kind: str
    subject: str
    from_state: str | None
    to_state: str | None
    reason: str
    fields: dict[str, Any]


class EventsAnswer(Answer):
    """Oldest first."""

    items: list[EventItem]


@router.get("/events", response_model=EventsAnswer, responses={200: {"content": {_SSE: {}}}})
async def get_events(
    services: Services,
    caller: Viewer,
    limit: Annotated[int, Query(ge=1, le=500)] = 200,
    after: Annotated[int, Query(ge=0)] = 0,
    accept: Annotated[str | None, Header()] = None,
    last_event_id: Annotated[int | None, Header()] = None,
) -> EventsAnswer | StreamingResponse:
    """A list; or, where the client accepts text/event-stream, every change from now on."""
    if accept is not None and _SSE in accept:
        resumed = last_event_id if last_event_id is not None else (after or None)
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        return StreamingResponse(_stream(services.events, resumed), media_type=_SSE, headers=headers)
    return EventsAnswer(items=[event_item(event) for event in services.events.recent(after, limit)])


async def _stream(events: EventLog, after: int | None) -> AsyncIterator[str]:
    with events.subscription(after) as source:
        waiting: asyncio.Task[Event] | None = None
        try:
            while True:
                waiting = waiting or asyncio.ensure_future(anext(source))
                done, _ = await asyncio.wait({waiting}, timeout=COMMENT_AFTER_S)
                if not done:
                    yield ": ka\n\n"
                    continue
                try:
                    event = waiting.result()
                except StopAsyncIteration:
                    return
                waiting = None
                yield f"id: {event.id}\nevent: {event.kind}\ndata: {event_item(event).model_dump_json()}\n\n"
        finally:
            if waiting is not None:
                waiting.cancel()


def event_item(event: Event) -> EventItem:
    return EventItem(
        id=event.id,
        at=event.at,
        kind=event.kind,
        subject=event.subject,
        from_state=event.from_state,
        to_state=event.to_state,
        reason=event.reason,
        fields=event.fields,
    )
