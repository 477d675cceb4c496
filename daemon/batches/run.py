"""BatchRun: one batch from validation to its end, from wherever an earlier process left it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import structlog

from daemon.batches import lines
from daemon.batches.desk import BatchDesk, entered
from daemon.batches.lines import RequestLine
from daemon.batches.records import BatchRecord, BatchState, LineError
from daemon.store.base import utc_now
from daemon.tenants.principal import Principal
from engine.errors import NotFound, PermissionDenied, Unauthenticated

PRIORITY = 1000  # below every tenant's
MAX_BEGUN = 64  # lines of one batch that have begun, those that wait to be asked again among them
LONGEST_PAUSE_S = 15.0  # a limit may be changed meanwhile
log = structlog.get_logger("bayard.batches")


@dataclass(frozen=True, slots=True)
class LineAnswer:
    """body: JSON. retry_s: it could not be asked now, and may be asked again after so long."""

    status: int
    request_id: str
    body: bytes
    retry_s: float | None = None


Ask = Callable[[Principal, str, bytes], Awaitable[LineAnswer]]


class Place:
    """The right to run one line, of all that run at once. Given back any number of times, it counts once."""

    def __init__(self, give_back: Callable[[], None]) -> None:
        self._give_back = give_back
        self._held = True

    def release(self) -> None:
        if self._held:
            self._held = False
            self._give_back()

    def taken_again(self) -> None:
        self._held = True


class BatchRun:
    """Owner: the BatchRunner, as one task. may_begin waits until a line may begin, and holds a place for it."""

    def __init__(
        self,
        desk: BatchDesk,
        record: BatchRecord,
        ask: Ask,
        principal_of: Callable[[str], Principal],
        may_begin: Callable[[], Awaitable[None]],
        done_with: Callable[[], None],
        tell: Callable[[BatchRecord, BatchState], None],
    ) -> None:
        self.record = record
        self.cancelled = asyncio.Event()
        self._desk = desk
        self._ask = ask
        self._principal_of = principal_of
        self._may_begin = may_begin
        self._done_with = done_with
        self._tell = tell
        self._running: set[asyncio.Task[None]] = set()
        self._changed = False  # counts that the row does not have yet

    async def run(self) -> None:
        """Returns when the batch has ended. Cancelled: it goes on in a later process."""
        if self.record.state is BatchState.VALIDATING:
            await self._validate()
        if self.record.state is BatchState.IN_PROGRESS:
            await self._run_lines()
        if self.record.state is BatchState.CANCELLING:
            await self._end(BatchState.CANCELLED)
        elif self.record.state is BatchState.FINALIZING:
            await self._end(BatchState.COMPLETED)

    async def save(self) -> None:
        """Let the row have the counts."""
        if self._changed:
            self._changed = False
            done, failed = self.record.completed, self.record.failed
            await self._change(lambda record: replace(record, completed=done, failed=failed))

    async def fail(self, error: LineError) -> None:
        """End it as failed, keeping what is done."""
        await self._stop_lines()
        self.record = replace(self.record, errors=(error,))
        await self._end(BatchState.FAILED)

    async def _validate(self) -> None:
        path = self._desk.shelf.path(self.record.input_file_id)
        most = self._desk.settings.max_lines
        if not path.exists():
            errors, total = [LineError("file_gone", "The input file is gone.")], 0
        else:
            total, errors = await asyncio.to_thread(lines.check_file, path, self.record.endpoint, most)
        if errors:
            self.record = replace(self.record, errors=tuple(errors))
            await self._end(BatchState.FAILED)
            return
        await self._enter(BatchState.IN_PROGRESS, total=total)

    async def _run_lines(self) -> None:
        answered = await self._answered()
        beginning = asyncio.create_task(self._begin_lines(answered), name=f"{self.record.id} lines")
        stopping = asyncio.create_task(self.cancelled.wait())
        left_s = max(0.0, (self.record.expires_at - utc_now()).total_seconds())
        try:
            await asyncio.wait({beginning, stopping}, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            finished = beginning.done()
        finally:
            stopping.cancel()
            beginning.cancel()
            await asyncio.gather(beginning, stopping, return_exceptions=True)
            await self._stop_lines()
        if finished:
            await self._finish(beginning)
        elif self.cancelled.is_set():
            self.record = replace(self.record, state=BatchState.CANCELLING)
        else:
            await self._expire()

    async def _finish(self, beginning: asyncio.Task[None]) -> None:
        try:
            beginning.result()
        except Unauthenticated:
            await self.fail(LineError("key_gone", "The key that made the batch was revoked or has expired."))
            return
        await self._enter(BatchState.FINALIZING, completed=self.record.completed, failed=self.record.failed)

    async def _answered(self) -> set[str]:
        """What an earlier process wrote; counted anew, as the row may be behind."""
        shelf = self._desk.shelf
        assert self.record.output_file_id is not None
        assert self.record.error_file_id is not None
        good = await asyncio.to_thread(lines.answered_ids, shelf.path(self.record.output_file_id))
        bad = await asyncio.to_thread(lines.answered_ids, shelf.path(self.record.error_file_id))
        self.record = replace(self.record, completed=len(good), failed=len(bad))
        self._changed = True
        return good | bad

    async def _begin_lines(self, answered: set[str]) -> None:
        """Returns when every line is answered.

        Raises: Unauthenticated when the key is gone; and whatever else a line's task raised: a fault of ours
        """
        todo = lines.lines_of(self._desk.shelf.path(self.record.input_file_id))
        while (found := await asyncio.to_thread(next, todo, None)) is not None:
            line = lines.read_line(found[1])
            if line.custom_id in answered:
                continue
            await self._begin(line)
        while self._running:
            await self._some_ended()

    async def _begin(self, line: RequestLine) -> None:
        while len(self._running) >= MAX_BEGUN:
            await self._some_ended()
        await self._may_begin()
        place = Place(self._done_with)
        task = asyncio.create_task(self._line(line, place), name=f"{self.record.id} line")
        task.add_done_callback(lambda _: place.release())  # also of a task that is cancelled before it begins
        self._running.add(task)
        self._reap()

    async def _some_ended(self) -> None:
        await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
        self._reap()

    def _reap(self) -> None:
        for task in [task for task in self._running if task.done()]:
            self._running.discard(task)
            task.result()

    async def _line(self, line: RequestLine, place: Place) -> None:
        answer = await self._answer_of(line, place)
        good = answer.status == 200
        file_id = self.record.output_file_id if good else self.record.error_file_id
        assert file_id is not None
        data = lines.answer_line(line.custom_id, answer.status, answer.request_id, answer.body)
        await self._write(file_id, data)
        done, failed = self.record.completed + int(good), self.record.failed + int(not good)
        self.record = replace(self.record, completed=done, failed=failed)
        self._changed = True

    async def _write(self, file_id: str, data: bytes) -> None:
        """Not in a thread: no cancel may come between the last of it and what follows. A full disk is waited for."""
        while True:
            try:
                self._desk.shelf.append(file_id, data)
                return
            except OSError as error:
                log.warning("batch_not_written", error=error.strerror or str(error), **self.record.facts)
                await asyncio.sleep(LONGEST_PAUSE_S)

    async def _answer_of(self, line: RequestLine, place: Place) -> LineAnswer:
        """A line that has to wait leaves its place to others."""
        while True:
            try:
                principal = self._principal_of(self.record.key_id)
            except PermissionDenied:  # suspended: it may be taken up again
                await self._pause(place, LONGEST_PAUSE_S)
                continue
            answer = await self._ask(replace(principal, priority=PRIORITY), self.record.endpoint, bytes(line.body))
            if answer.retry_s is None:
                return answer
            await self._pause(place, answer.retry_s)

    async def _pause(self, place: Place, seconds: float) -> None:
        place.release()
        await asyncio.sleep(min(max(1.0, seconds), LONGEST_PAUSE_S))
        await self._may_begin()
        place.taken_again()

    async def _stop_lines(self) -> None:
        running, self._running = self._running, set()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _expire(self) -> None:
        answered = await self._answered()
        assert self.record.error_file_id is not None
        left = 0
        for _, raw in lines.lines_of(self._desk.shelf.path(self.record.input_file_id)):
            line = lines.read_line(raw)
            if line.custom_id not in answered:
                told = "The batch's completion window ended before this request was run."
                data = lines.lost_line(line.custom_id, "batch_expired", told)
                await asyncio.to_thread(self._desk.shelf.append, self.record.error_file_id, data)
                left += 1
        self.record = replace(self.record, failed=self.record.failed + left)
        await self._end(BatchState.EXPIRED)

    async def _end(self, state: BatchState) -> None:
        kept = await self._desk.keep_outputs(self.record)
        await self._enter(
            state,
            output_file_id=kept.output_file_id,
            error_file_id=kept.error_file_id,
            completed=kept.completed,
            failed=kept.failed,
            errors=kept.errors,
        )

    async def _enter(self, state: BatchState, **fields: object) -> None:
        """A cancel that came meanwhile is not lost."""
        before = self.record.state

        def change(record: BatchRecord) -> BatchRecord:
            changed = replace(record, **fields)  # type: ignore[arg-type]
            if record.state is BatchState.CANCELLING and not state.over:
                return changed
            return entered(changed, state)

        self.record = await self._desk.change(self.record.tenant_id, self.record.id, change)
        self._changed = False
        self._tell(self.record, before)
        log.info("batch_changed", from_state=before, **self.record.facts)

    async def _change(self, change: Callable[[BatchRecord], BatchRecord]) -> None:
        try:
            await self._desk.change(self.record.tenant_id, self.record.id, change)
        except NotFound:  # its tenant was deleted; the run ends with the next look
            return
