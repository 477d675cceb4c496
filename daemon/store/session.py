"""Store: one writer thread and a few readers; callers pass a function and get plain values back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from daemon.settings import Settings
from daemon.store.base import Base
from daemon.store.engines import database_url, make_engine, store_error
from daemon.store.lock import make_private_file
from engine.errors import StoreError

T = TypeVar("T")
NUM_READERS = 4


class Store:
    """The only door to the database. Every write runs on one thread, in the order of the calls, in one transaction.

    Owner: the Appliance, or an offline command that holds the state lock.
    """

    def __init__(self, writer: Engine, reader: Engine) -> None:
        self._writer_engine = writer
        self._reader_engine = reader
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="store-writer")
        self._readers = ThreadPoolExecutor(NUM_READERS, thread_name_prefix="store-reader")
        self._closed = False

    @classmethod
    def open(cls, settings: Settings) -> Store:
        """Bring the schema up to date and open. The caller holds the state lock.

        Blocks: for the migrations.
        Raises: ConfigError if the place cannot be written, MigrationFailed if the schema cannot be brought up to date.
        """
        from daemon.store.migrate import bring_up_to_date  # Alembic is slow to import and mostly not needed

        url = database_url(settings)
        if not settings.database_url:
            make_private_file(settings.database_file)
        bring_up_to_date(url, settings.state_dir)
        store = cls(make_engine(url, writer=True, pool_size=1), make_engine(url, writer=False, pool_size=NUM_READERS))
        store.write_sync(lambda session: session.connection() and None)  # write-ahead mode is set before any reader
        return store

    def enqueue(self, fn: Callable[[Session], T]) -> Future[T]:
        """Start a write and do not wait; writes keep the order of their calls. Safe from any thread."""
        if self._closed:
            raise StoreError("the store is closed.", "The daemon is stopping; try again once it runs.")
        return self._writer.submit(_transaction, self._writer_engine, fn)

    async def write(self, fn: Callable[[Session], T]) -> T:
        """Run fn in one transaction; commit if it returns, roll back if it raises. fn returns no ORM rows."""
        return await asyncio.wrap_future(self.enqueue(fn))

    async def read(self, fn: Callable[[Session], T]) -> T:
        """Run fn against one consistent view. fn returns no ORM rows and cannot write."""
        if self._closed:
            raise StoreError("the store is closed.", "The daemon is stopping; try again once it runs.")
        return await asyncio.wrap_future(self._readers.submit(_transaction, self._reader_engine, fn))

    def write_sync(self, fn: Callable[[Session], T]) -> T:
        """As write. Blocks: for the writes before it. For offline commands and threads, never the event loop."""
        return self.enqueue(fn).result()

    def read_sync(self, fn: Callable[[Session], T]) -> T:
        """As read, on the calling thread. Blocks."""
        return _transaction(self._reader_engine, fn)

    def close(self) -> None:
        """Finish the writes that were accepted, then close. Blocks. Harmless when repeated."""
        self._closed = True
        self._writer.shutdown(wait=True)
        self._readers.shutdown(wait=True)
        self._reader_engine.dispose()
        self._writer_engine.dispose()


def _transaction(engine: Engine, fn: Callable[[Session], T]) -> T:
    try:
        with Session(engine, expire_on_commit=False) as session, session.begin():
            result = fn(session)
            session.flush()
    except DBAPIError as error:
        raise store_error(error) from error
    _refuse_rows(result)
    return result


def _refuse_rows(result: object) -> None:
    items = result if isinstance(result, (list, tuple, set)) else (result,)
    for item in items:
        if isinstance(item, Base):
            raise TypeError(f"a row of {type(item).__tablename__} left the store; return a dataclass")
