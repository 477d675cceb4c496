"""ResponseArchive: answers that clients had stored, each seen by its own tenant alone, forgotten after a while."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec
from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from daemon.store.base import utc_now
from daemon.store.schema import StoredResponse
from daemon.store.session import Store
from engine.errors import InvalidParameter, NotFound

MAX_TURNS = 256  # that one conversation is put together from
MAX_BYTES = 32 << 20
_FORGET_EVERY_S = 3600.0


@dataclass(frozen=True, slots=True)
class StoredTurn:
    """input: the items that were new with this turn; response: the object as it was answered."""

    id: str
    previous_id: str | None
    input: list[dict[str, Any]]
    response: dict[str, Any]
    created_at: datetime


class ResponseArchive:
    """Owner: the Appliance. keep_days: how long an answer can be gone on from."""

    def __init__(self, store: Store, keep_days: int) -> None:
        self._store = store
        self._keep = timedelta(days=keep_days)
        self._forgot_mono: float | None = None

    async def add(self, tenant_id: str, turn: StoredTurn) -> None:
        """Raises: StoreError"""
        row = StoredResponse(
            id=turn.id,
            tenant_id=tenant_id,
            previous_id=turn.previous_id,
            input_json=msgspec.json.encode(turn.input).decode(),
            response_json=msgspec.json.encode(turn.response).decode(),
            created_at=turn.created_at,
        )
        before = self._forget_before()

        def write(session: Session) -> None:
            if before is not None:
                session.execute(delete(StoredResponse).where(StoredResponse.created_at < before))
            session.add(row)

        await self._store.write(write)

    async def get(self, tenant_id: str, response_id: str) -> StoredTurn:
        """Raises: NotFound"""
        found = await self._store.read(lambda session: self._find(session, tenant_id, response_id))
        if found is None:
            raise NotFound(
                f"There is no stored response {response_id[:64]!r}.",
                f"It may have been deleted, or be older than {self._keep.days} days.",
            )
        return found

    async def conversation(self, tenant_id: str, response_id: str) -> list[StoredTurn]:
        """The turns up to this one, oldest first. Raises: InvalidParameter where one of them is gone"""

        def read(session: Session) -> list[StoredTurn]:
            turns: list[StoredTurn] = []
            wanted: str | None = response_id
            size = 0
            while wanted is not None:
                row = self._row(session, tenant_id, wanted)
                if row is None:
                    raise InvalidParameter(
                        f"The previous response {wanted[:64]!r} is not stored.",
                        "Send the conversation as input.",
                        param="previous_response_id",
                    )
                turns.append(_turn(row))
                size += len(row.input_json) + len(row.response_json)
                wanted = row.previous_id
                if len(turns) >= MAX_TURNS or size > MAX_BYTES:
                    raise InvalidParameter(
                        f"The conversation has more than {MAX_TURNS} turns or {MAX_BYTES:,} bytes.",
                        "Begin a new one.",
                        param="previous_response_id",
                    )
            return turns[::-1]

        return await self._store.read(read)

    async def delete(self, tenant_id: str, response_id: str) -> None:
        """Raises: NotFound"""

        def remove(session: Session) -> bool:
            row = self._row(session, tenant_id, response_id)
            if row is not None:
                session.delete(row)
            return row is not None

        if not await self._store.write(remove):
            raise NotFound(f"There is no stored response {response_id[:64]!r}.", "It may have been deleted already.")

    def _find(self, session: Session, tenant_id: str, response_id: str) -> StoredTurn | None:
        row = self._row(session, tenant_id, response_id)
        return None if row is None else _turn(row)

    def _row(self, session: Session, tenant_id: str, response_id: str) -> StoredResponse | None:
        kept = StoredResponse.created_at >= utc_now() - self._keep
        mine = StoredResponse.tenant_id == tenant_id
        return session.scalars(select(StoredResponse).where(StoredResponse.id == response_id, mine, kept)).first()

    def _forget_before(self) -> datetime | None:
        """From when on to keep, where it is time to look."""
        now = time.monotonic()
        if self._forgot_mono is not None and now - self._forgot_mono < _FORGET_EVERY_S:
            return None
        self._forgot_mono = now
        return utc_now() - self._keep


def _turn(row: StoredResponse) -> StoredTurn:
    return StoredTurn(
        row.id,
        row.previous_id,
        msgspec.json.decode(row.input_json),
        msgspec.json.decode(row.response_json),
        row.created_at,
    )
