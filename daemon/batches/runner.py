"""BatchRunner: begins open batches, oldest first, one a tenant, when nobody else waits or in the hours set for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from zoneinfo import ZoneInfo

import structlog

from daemon.batches.desk import BatchDesk
from daemon.batches.hours import read_hours
from daemon.batches.records import BatchRecord, BatchState, LineError
from daemon.batches.run import Ask, BatchRun
from daemon.events import EventLog
from daemon.store.base import utc_now
from daemon.tenants.principal import Principal
from engine.errors import BayardError, NotFound

LOOK_EVERY_S = 2.0
TIDY_EVERY_S = 3600.0
IDLE_POLL_S = 0.2
MAX_ACTIVE = 16  # batches at once, each of another tenant; their lines share the places
log = structlog.get_logger("bayard.batches")


class BatchRunner:
    """Owner: the Appliance. busy: whether somebody waits for a request that is here; principal_of: whose a key is."""

    def __init__(
        self,
        desk: BatchDesk,
        ask: Ask,
        principal_of: Callable[[str], Principal],
        busy: Callable[[], bool],
        closed: Callable[[], bool],
        events: EventLog | None,
        zone: ZoneInfo,
    ) -> None:
        self._desk = desk
        self._ask = ask
        self._principal_of = principal_of
        self._busy = busy
        self._closed = closed
        self._events = events
        self._zone = zone
        self._hours = read_hours(desk.settings.hours)
        self._places = asyncio.Semaphore(desk.settings.parallel)
        self._runs: dict[str, tuple[BatchRun, asyncio.Task[None]]] = {}
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        desk.on_change = self._wake.set

    async def start(self) -> None:
        self._task = asyncio.create_task(self._look_always(), name="batches")

    async def stop(self) -> None:
        """Leave everything as it is; a later process goes on. Harmless when repeated."""
        tasks = [task for _, task in self._runs.values()]
        tasks += [self._task] if self._task is not None else []
        self._task = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def active(self) -> int:
        return len(self._runs)

    async def _look_always(self) -> None:
        next_tidy = 0.0
        loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            try:
                if loop.time() >= next_tidy:
                    await self._desk.tidy(utc_now())
                    await self._desk.remove_strangers()
                    next_tidy = loop.time() + TIDY_EVERY_S
                await self._look()
            except (BayardError, OSError) as error:  # the store or the disk; the next look tries again
                log.warning("batches_not_read", error=str(error))
            try:
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _look(self) -> None:
        served = {run.record.tenant_id for run, _ in self._runs.values()}
        for record in await self._desk.open_batches():
            found = self._runs.get(record.id)
            if found is not None:
                if record.state is BatchState.CANCELLING:
                    found[0].cancelled.set()
                await found[0].save()
            elif record.tenant_id not in served and len(self._runs) < MAX_ACTIVE:
                served.add(record.tenant_id)
                self._begin(record)

    def _begin(self, record: BatchRecord) -> None:
        run = BatchRun(
            self._desk, record, self._ask, self._principal_of, self._may_begin, self._places.release, self._tell
        )
        task = asyncio.create_task(self._guarded(run), name=record.id)
        self._runs[record.id] = (run, task)

    async def _guarded(self, run: BatchRun) -> None:
        """The border of one batch: a fault ends it as failed, and the others go on."""
        try:
            await run.run()
        except NotFound:
            log.info("batch_gone", **run.record.facts)  # with its tenant
        except Exception:
            log.exception("batch_broke", **run.record.facts)
            await self._fail(run)
        finally:
            self._runs.pop(run.record.id, None)
            self._wake.set()

    async def _fail(self, run: BatchRun) -> None:
        try:
            await run.fail(LineError("internal_error", "Bayard failed on this batch; the daemon's log names it."))
        except (BayardError, OSError) as error:  # the next look finds it open, and begins it again
            log.warning("batch_not_ended", error=str(error), **run.record.facts)

    async def _may_begin(self) -> None:
        await self._places.acquire()
        try:
            while not self._open_now():  # noqa: ASYNC110 - nobody tells when the last request has ended
                await asyncio.sleep(IDLE_POLL_S)
        except BaseException:
            self._places.release()
            raise

    def _open_now(self) -> bool:
        if self._closed():
            return False
        if self._hours.begin is not None:
            return self._hours.include(utc_now(), self._zone)
        return not self._busy()

    def _tell(self, record: BatchRecord, before: BatchState) -> None:
        if self._events is not None:
            counts = {"completed": record.completed, "failed": record.failed, "total": record.total}
            self._events.publish("batch", record.id, before, record.state, "", **counts)
