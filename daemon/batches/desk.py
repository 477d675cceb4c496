"""BatchDesk: what clients do with files and batches. Running them is the BatchRunner's."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from sqlalchemy.orm import Session

from daemon.batches import rows
from daemon.batches.records import ENDPOINTS, BatchRecord, BatchState, FileRecord
from daemon.batches.shelf import Shelf
from daemon.store.base import utc_now
from daemon.store.session import Store
from engine.errors import Conflict, InvalidParameter, QuotaExceeded

if TYPE_CHECKING:
    from daemon.settings import BatchSettings
    from daemon.tenants.principal import Principal

PURPOSE, OUTPUT = "batch", "batch_output"
MAX_NAME_CHARS = 255
MAX_METADATA = 16
STRANGER_S = 86_400.0
SHORTEST_EXPIRY_S, LONGEST_EXPIRY_S = 3600, 30 * 86_400
_WINDOW = re.compile(r"([1-9]\d{0,2})([hd])")
_UNITS = {"h": 3600, "d": 86_400}
_LONGEST_WINDOW_S = 30 * 86_400


def _nothing() -> None:
    return


class BatchDesk:
    """Owner: the Appliance. Every method looks at one tenant's things alone."""

    def __init__(self, store: Store, shelf: Shelf, settings: BatchSettings) -> None:
        self.shelf = shelf
        self.settings = settings
        self._store = store
        self.on_change: Callable[[], None] = _nothing  # a batch came or is to end

    # ------------------------------------------------------------------ files

    async def check_room(self, principal: Principal, more_bytes: int) -> None:
        """Raises: QuotaExceeded where the tenant's files would be too large together"""
        most = self.settings.max_stored_bytes
        stored = await self._store.read(lambda session: rows.stored_bytes(session, principal.tenant_id))
        if stored + more_bytes > most:
            raise QuotaExceeded(
                f"tenant {principal.tenant_name} has stored {stored:,} bytes and may store {most:,}; "
                f"{more_bytes:,} more do not fit.",
                "Delete files that are not needed any more.",
            )

    async def add_file(
        self, principal: Principal, file_id: str, purpose: str, filename: str, expires_after_s: int | None
    ) -> FileRecord:
        """Keep what lies on the shelf under file_id. Raises: InvalidParameter, QuotaExceeded"""
        if purpose != PURPOSE:
            raise InvalidParameter(f"purpose is {purpose[:32]!r}; only {PURPOSE!r} is served.", param="purpose")
        size = await asyncio.to_thread(self.shelf.size_bytes, file_id)
        if not size:
            raise InvalidParameter("The file is empty.", param="file")
        await self.check_room(principal, size)
        now = utc_now()
        kept_s = self._kept_s(expires_after_s)
        record = FileRecord(
            file_id, principal.tenant_id, purpose, filename[:MAX_NAME_CHARS], size, now, now + timedelta(seconds=kept_s)
        )
        await self._store.write(lambda session: rows.add_file(session, record))
        return record

    async def file(self, principal: Principal, file_id: str) -> FileRecord:
        """Raises: NotFound"""
        return await self._store.read(lambda session: rows.find_file(session, principal.tenant_id, file_id))

    async def files(self, principal: Principal) -> list[FileRecord]:
        """Oldest first."""
        return await self._store.read(lambda session: rows.list_files(session, principal.tenant_id))

    async def delete_file(self, principal: Principal, file_id: str) -> None:
        """Raises: NotFound; Conflict while a batch reads it"""
        await self.file(principal, file_id)
        users = await self._store.read(lambda session: rows.users_of(session, file_id))
        if users:
            raise Conflict(f"The file is read by the batch {users[0]}.", "Cancel it, or wait until it has ended.")
        await self._store.write(lambda session: rows.delete_file(session, principal.tenant_id, file_id))
        await asyncio.to_thread(self.shelf.remove, file_id)

    # ------------------------------------------------------------------ batches

    async def create(
        self,
        principal: Principal,
        input_file_id: str,
        endpoint: str,
        window: str,
        metadata: dict[str, str] | None,
    ) -> BatchRecord:
        """Raises: InvalidParameter, NotFound, QuotaExceeded"""
        if endpoint not in ENDPOINTS:
            raise InvalidParameter(
                f"endpoint is {endpoint[:64]!r}; use one of {', '.join(ENDPOINTS)}.", param="endpoint"
            )
        window_s = read_window(window)
        if metadata is not None and len(metadata) > MAX_METADATA:
            raise InvalidParameter(
                f"metadata has {len(metadata)} keys; at most {MAX_METADATA} are kept.", param="metadata"
            )
        file = await self.file(principal, input_file_id)
        if file.purpose != PURPOSE:
            raise InvalidParameter(f"The file {file.id} is a batch's output.", param="input_file_id")
        now = utc_now()
        record = BatchRecord(
            id="batch_" + secrets.token_hex(12),
            tenant_id=principal.tenant_id,
            key_id=principal.key_id,
            endpoint=endpoint,
            input_file_id=input_file_id,
            completion_window=window,
            state=BatchState.VALIDATING,
            created_at=now,
            expires_at=now + timedelta(seconds=window_s),
            output_file_id=self.shelf.new_id(),
            error_file_id=self.shelf.new_id(),
            metadata=metadata or {},
        )
        most = self.settings.max_open
        mine = [one for one in await self.batches(principal) if not one.state.over]
        if len(mine) >= most:
            raise QuotaExceeded(
                f"{len(mine)} batches of tenant {principal.tenant_name} have not ended; at most {most} may be open.",
                "Wait until one has ended, or cancel one.",
                retry_after_s=60.0,
            )
        await self._store.write(lambda session: rows.add_batch(session, record))
        self.on_change()
        return record

    async def batch(self, principal: Principal, batch_id: str) -> BatchRecord:
        """Raises: NotFound"""
        return await self._store.read(lambda session: rows.find_batch(session, principal.tenant_id, batch_id))

    async def batches(self, principal: Principal) -> list[BatchRecord]:
        """Newest first."""
        return await self._store.read(lambda session: rows.list_batches(session, principal.tenant_id))

    async def cancel(self, principal: Principal, batch_id: str) -> BatchRecord:
        """It ends soon; what is done is kept. Raises: NotFound; Conflict where it has ended"""
        record = await self.batch(principal, batch_id)
        if record.state.over:
            raise Conflict(f"The batch {batch_id} is {record.state} already.")
        changed = await self.change(principal.tenant_id, batch_id, to_cancelling)
        self.on_change()
        return changed

    async def change(self, tenant_id: str, batch_id: str, change: Callable[[BatchRecord], BatchRecord]) -> BatchRecord:
        """Read, change and write in one transaction. Raises: NotFound"""

        def write(session: Session) -> BatchRecord:
            record = change(rows.find_batch(session, tenant_id, batch_id))
            rows.save_batch(session, record)
            return record

        return await self._store.write(write)

    async def open_batches(self) -> list[BatchRecord]:
        """Of every tenant, oldest first."""
        return await self._store.read(rows.open_batches)

    async def keep_outputs(self, record: BatchRecord) -> BatchRecord:
        """Make files of what a batch wrote; the id of an empty one is dropped. Harmless when repeated."""
        kept: dict[str, str | None] = {}
        for name in ("output_file_id", "error_file_id"):
            file_id: str | None = getattr(record, name)
            size = 0 if file_id is None else await asyncio.to_thread(self.shelf.size_bytes, file_id)
            kept[name] = file_id if size else None
            if file_id is not None and size:
                await asyncio.to_thread(self.shelf.sync, file_id)
                await self._keep_output(record, file_id, name.removesuffix("_file_id"), size)
        return replace(record, **kept)  # type: ignore[arg-type]

    async def tidy(self, now: datetime) -> None:
        """Remove what has expired, and what an interrupted upload left."""
        before = now - timedelta(days=self.settings.keep_days)
        expired = await self._store.write(lambda session: rows.forget_expired(session, now, before))
        for file_id in expired:
            await asyncio.to_thread(self.shelf.remove, file_id)

    async def remove_strangers(self, untouched_s: float = STRANGER_S) -> None:
        """Files that no row names: of an upload that a crash cut off."""
        old = await asyncio.to_thread(self.shelf.untouched, untouched_s)
        known = await self._store.read(rows.all_file_ids)  # after the folder was looked at: none is missed
        for record in await self.open_batches():
            known |= {file_id for file_id in (record.output_file_id, record.error_file_id) if file_id}
        for file_id in old:
            if file_id not in known:
                await asyncio.to_thread(self.shelf.remove, file_id)

    async def _keep_output(self, record: BatchRecord, file_id: str, kind: str, size: int) -> None:
        now = utc_now()
        file = FileRecord(
            file_id, record.tenant_id, OUTPUT, f"{record.id}_{kind}.jsonl", size, now,
            now + timedelta(seconds=self._kept_s(None)),
        )  # fmt: skip

        def write(session: Session) -> None:
            if file_id not in rows.all_file_ids(session):
                rows.add_file(session, file)

        await self._store.write(write)

    def _kept_s(self, asked_s: int | None) -> int:
        longest = self.settings.keep_days * 86_400
        return longest if asked_s is None else min(asked_s, longest)


def read_window(window: str) -> int:
    """Seconds. Raises: InvalidParameter"""
    match = _WINDOW.fullmatch(window)
    seconds = int(match[1]) * _UNITS[match[2]] if match else 0
    if not 0 < seconds <= _LONGEST_WINDOW_S:
        raise InvalidParameter(
            f"completion_window is {window[:32]!r}; use hours or days, such as 24h or 7d, up to 30d.",
            param="completion_window",
        )
    return seconds


def entered(record: BatchRecord, state: BatchState) -> BatchRecord:
    """The record in a new state, with the moment noted."""
    return replace(record, state=state, moments={**record.moments, str(state): utc_now()})


def to_cancelling(record: BatchRecord) -> BatchRecord:
    """Unless it has ended, or its end has begun."""
    if record.state.over or record.state in (BatchState.CANCELLING, BatchState.FINALIZING):
        return record
    return entered(record, BatchState.CANCELLING)
