"""The routes of /v1/responses: making an answer, and the stored ones."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import msgspec

from daemon.api.exchange import Exchange
from daemon.api.openai.handlers import until_client_gone
from daemon.api.openai.reply import encode
from daemon.api.openai.responses.items import Item
from daemon.api.openai.responses.reply import ResponseWriter
from daemon.api.openai.responses.request import ResponsesBody, decoder, new_items, read_response
from daemon.api.sse import SseStream, StreamKeeper
from daemon.responses.archive import StoredTurn
from daemon.serving import counting
from daemon.serving.events import Failed, Finished
from daemon.serving.request import GenerationRequest
from engine.errors import BayardError, InvalidParameter, RequestError

MAX_PAGE = 100
DEFAULT_PAGE = 20
_FIELDS = {"max_tokens": "max_output_tokens", "messages": "input"}  # what errors call by chat's names


class Responses:
    """The handlers, with the keeper that all streams share. Owner: the application."""

    def __init__(self, keeper: StreamKeeper) -> None:
        self._keeper = keeper

    async def create(self, exchange: Exchange) -> None:
        """POST /v1/responses"""
        body: ResponsesBody = await exchange.read_json(decoder)
        fresh = new_items(body)
        items = [*await _earlier_items(exchange, body), *await _resolved(exchange, fresh)]
        answer = _Answer(exchange, body, read_response(body, items), fresh)
        with _in_these_words():
            await until_client_gone(exchange, answer.stream(self._keeper) if body.stream else answer.whole())

    async def retrieve(self, exchange: Exchange) -> None:
        """GET /v1/responses/{id}"""
        turn = await _stored(exchange)
        if exchange.query.get("stream") == "true":
            raise InvalidParameter("A stored response is not streamed again.", "Leave stream out.", param="stream")
        await exchange.respond(200, encode(turn.response))

    async def delete(self, exchange: Exchange) -> None:
        """DELETE /v1/responses/{id}"""
        response_id = exchange.path_tail
        await exchange.services.responses.delete(_tenant(exchange), response_id)
        await exchange.respond(200, encode({"id": response_id, "object": "response", "deleted": True}))

    async def input_items(self, exchange: Exchange) -> None:
        """GET /v1/responses/{id}/input_items"""
        items = (await _stored(exchange)).input
        await exchange.respond(200, encode(_page(items, exchange.query)))


async def count_input_tokens(exchange: Exchange) -> None:
    """POST /v1/responses/input_tokens: what the same body would cost as a prompt."""
    body: ResponsesBody = await exchange.read_json(decoder)
    items = [*await _earlier_items(exchange, body), *await _resolved(exchange, new_items(body))]
    assert exchange.principal is not None
    request = read_response(body, items)
    with _in_these_words():
        token_ids = await counting.prompt_tokens(exchange.services.router, exchange.principal, request)
    await exchange.respond(200, encode({"object": "response.input_tokens", "input_tokens": len(token_ids)}))


@contextmanager
def _in_these_words() -> Iterator[None]:
    """Errors about a field under the name it has in this contract."""
    try:
        yield
    except RequestError as error:
        error.param = _FIELDS.get(error.param or "", error.param)
        raise


class _Answer:
    """One answer on its way. Owner: the handler."""

    def __init__(self, exchange: Exchange, body: ResponsesBody, request: GenerationRequest, fresh: list[Item]) -> None:
        self._exchange = exchange
        self._body = body
        self._request = request
        self._fresh = fresh
        self._writer: ResponseWriter | None = None

    async def whole(self) -> None:
        writer: ResponseWriter | None = None
        serving = self._exchange.services.serving
        async with await serving.open(self._request, self._principal, origin=self._exchange.origin) as generation:
            writer = ResponseWriter(generation.id, generation.created, self._body)
            async for event in generation:
                match event:
                    case Finished():
                        writer.finish(event.usage)
                        await self._store(writer)
                        await self._exchange.respond(200, encode(writer.object))
                    case Failed():
                        raise event.error
                    case _:
                        writer.take(event)

    async def stream(self, keeper: StreamKeeper) -> None:
        task = asyncio.current_task()
        assert task is not None
        stream = SseStream(self._exchange, task.cancel)
        keeper.add(stream)
        try:
            await self._write_events(stream)
        except BayardError as error:
            if not stream.begun:
                raise
            writer = self._writer or ResponseWriter(f"resp_{secrets.token_hex(12)}", int(time.time()), self._body)
            last = writer.fail(error)
            await stream.write(last, last=True)
        finally:
            keeper.remove(stream)

    async def _write_events(self, stream: SseStream) -> None:
        serving = self._exchange.services.serving
        async with await serving.open(self._request, self._principal, origin=self._exchange.origin) as generation:
            writer = self._writer = ResponseWriter(generation.id, generation.created, self._body)
            async for event in generation:
                match event:
                    case Finished():
                        last = writer.finish(event.usage)
                        await self._store(writer)
                        await stream.write(last, last=True)
                    case Failed():
                        raise event.error
                    case _:
                        if data := writer.take(event):
                            await stream.write(data)

    @property
    def _principal(self) -> Any:
        assert self._exchange.principal is not None
        return self._exchange.principal

    async def _store(self, writer: ResponseWriter) -> None:
        if self._body.store is False:
            return
        response = writer.object
        turn = StoredTurn(
            response["id"],
            self._body.previous_response_id,
            [_shown(item, response["id"], at) for at, item in enumerate(self._fresh)],
            response,
            datetime.fromtimestamp(response["created_at"], UTC),
        )
        await self._exchange.services.responses.add(_tenant(self._exchange), turn)


async def _earlier_items(exchange: Exchange, body: ResponsesBody) -> list[Item]:
    """The conversation that is gone on with. Raises: InvalidParameter where it is not stored"""
    if body.previous_response_id is None:
        return []
    turns = await exchange.services.responses.conversation(_tenant(exchange), body.previous_response_id)
    return [msgspec.convert(item, Item) for turn in turns for item in [*turn.input, *turn.response["output"]]]


async def _resolved(exchange: Exchange, items: list[Item]) -> list[Item]:
    """The items with those that are only named put in their place. Raises: InvalidParameter"""
    resolved: list[Item] = []
    for at, item in enumerate(items):
        if item.type != "item_reference":
            resolved.append(item)
            continue
        found = await _named_item(exchange, item.id or "")
        if found is None:
            raise InvalidParameter(
                f"input[{at}] names the item {(item.id or '')[:64]!r}, which is not stored.",
                "Send the item itself.",
                param=f"input[{at}]",
            )
        resolved.append(found)
    return resolved


async def _named_item(exchange: Exchange, item_id: str) -> Item | None:
    """An item's id holds the id of the answer that it is a part of."""
    response_id = f"resp_{item_id.rpartition('_')[2][:24]}"
    try:
        turns = await exchange.services.responses.conversation(_tenant(exchange), response_id)
    except InvalidParameter:
        return None
    for item in [*turns[-1].input, *turns[-1].response["output"]]:
        if item.get("id") == item_id:
            return msgspec.convert(item, Item)
    return None


async def _stored(exchange: Exchange) -> StoredTurn:
    return await exchange.services.responses.get(_tenant(exchange), exchange.path_tail)


def _tenant(exchange: Exchange) -> str:
    assert exchange.principal is not None
    return exchange.principal.tenant_id


def _shown(item: Item, response_id: str, at: int) -> dict[str, Any]:
    """An input item as it is listed: with a type, an id, and parts for content."""
    shown: dict[str, Any] = msgspec.to_builtins(item)
    kind = shown.setdefault("type", "message")
    prefix = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}.get(kind, "it")
    shown.setdefault("id", f"{prefix}_{response_id.partition('_')[2]}i{at:x}")
    shown.setdefault("status", "completed")
    if kind == "message" and isinstance(shown.get("content"), str):
        part = "output_text" if shown.get("role") == "assistant" else "input_text"
        shown["content"] = [{"type": part, "text": shown["content"]}]
    return shown


def _page(items: list[dict[str, Any]], query: dict[str, str]) -> dict[str, Any]:
    """Raises: InvalidParameter"""
    limit = query.get("limit", str(DEFAULT_PAGE))
    if not limit.isascii() or not limit.isdigit() or len(limit) > 9 or not 1 <= int(limit) <= MAX_PAGE:
        raise InvalidParameter(f"limit is {limit[:32]!r}; it must be 1 to {MAX_PAGE}.", param="limit")
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidParameter(f"order is {order[:32]!r}; use asc or desc.", param="order")
    listed = items if order == "asc" else items[::-1]
    after = query.get("after")
    if after is not None:
        ids = [item["id"] for item in listed]
        if after not in ids:
            raise InvalidParameter(f"There is no item {after[:64]!r}.", param="after")
        listed = listed[ids.index(after) + 1 :]
    page = listed[: int(limit)]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(listed) > len(page),
    }
