"""Long work that a client started and looks at later: its progress, its end, and a way to cancel it."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

import structlog

from daemon.models.copying import Cancelled, Report
from daemon.models.record import ImportProgress
from daemon.store.base import utc_now
from engine.errors import BayardError, NotFound
from engine.messages import ErrorInfo

_KEPT = 50
_AT_ONCE = 2

log = structlog.get_logger("bayard.models")

Work = Callable[[Report, Cancelled], dict[str, Any]]


class OperationState(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Operation:
    id: str
    kind: str  # "import", "verify", "calibrate"
    subject: str
    state: OperationState
    started_at: datetime
    ended_at: datetime | None = None
    progress: ImportProgress | None = None
    result: dict[str, Any] | None = None
    error: ErrorInfo | None = None

    @property
    def ended(self) -> bool:
        return self.ended_at is not None


class Operations:
    """Runs work in a few threads and remembers the newest operations. Safe from any thread. Owner: the Appliance."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[str, Operation] = OrderedDict()
        self._cancelled: set[str] = set()
        self._closing = False
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="operation")

    def start(self, kind: str, subject: str, work: Work) -> Operation:
        """Begin in the background; returns at once."""
        operation = Operation("op_" + secrets.token_hex(8), kind, subject, OperationState.WAITING, utc_now())
        with self._lock:
            self._known[operation.id] = operation
            ended = [known.id for known in self._known.values() if known.ended]
            for old in ended[: max(0, len(self._known) - _KEPT)]:
                del self._known[old]
        self._threads.submit(self._run, operation.id, work)
        return operation

    def get(self, operation_id: str) -> Operation:
        """Raises: NotFound."""
        with self._lock:
            operation = self._known.get(operation_id)
        if operation is None:
            raise NotFound(f"there is no operation {operation_id!r}.", "Ended ones are forgotten after a while.")
        return operation

    def all(self) -> list[Operation]:
        """Newest first."""
        with self._lock:
            return list(reversed(self._known.values()))

    def cancel(self, operation_id: str) -> Operation:
        """Ask it to stop at the next chunk; harmless once it has ended. Raises: NotFound."""
        operation = self.get(operation_id)
        if not operation.ended:
            with self._lock:
                self._cancelled.add(operation_id)
        return operation

    def close(self) -> None:
        """Cancel what runs and wait for it. Blocks: for one chunk of copying, or a moment of measuring."""
        self._closing = True
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _run(self, operation_id: str, work: Work) -> None:
        def cancelled() -> bool:
            return self._closing or operation_id in self._cancelled

        def report(progress: ImportProgress) -> None:
            self._update(operation_id, progress=progress)

        self._update(operation_id, state=OperationState.RUNNING)
        try:
            result = work(report, cancelled)
        except BayardError as error:
            state = OperationState.CANCELLED if cancelled() else OperationState.FAILED
            info = ErrorInfo(error.code, error.message, error.hint)
            self._update(operation_id, state=state, error=info, ended_at=utc_now())
        except Exception as error:  # the border of this thread's work: it ends the operation
            log.exception("operation_failed", operation=operation_id)
            info = ErrorInfo("internal_error", f"{type(error).__name__}: {error}", "The daemon's log tells more.")
            self._update(operation_id, state=OperationState.FAILED, error=info, ended_at=utc_now())
        else:
            self._update(operation_id, state=OperationState.DONE, result=result, ended_at=utc_now())
        self._cancelled.discard(operation_id)

    def _update(self, operation_id: str, **changes: Any) -> None:
        with self._lock:
            self._known[operation_id] = replace(self._known[operation_id], **changes)
