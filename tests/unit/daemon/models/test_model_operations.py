"""Operations: progress, one end, cancelling."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from daemon.models.copying import Cancelled, Report
from daemon.models.operations import Operation, Operations, OperationState
from daemon.models.record import ImportProgress
from engine.errors import Conflict, NotFound, StoreError


@pytest.fixture
def operations() -> Iterator[Operations]:
    made = Operations()
    yield made
    made.close()


def ended(operations: Operations, operation: Operation) -> Operation:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        now = operations.get(operation.id)
        if now.ended:
            return now
        time.sleep(0.01)
    raise AssertionError("it did not end")


def test_work_that_returns_is_done_with_its_result(operations: Operations) -> None:
    def work(report: Report, cancelled: Cancelled) -> dict[str, Any]:
        report(ImportProgress("copying", "f", 3, 4))
        return {"model": "m"}

    done = ended(operations, operations.start("import", "m", work))
    assert (done.state, done.result, done.error) == (OperationState.DONE, {"model": "m"}, None)
    assert done.progress == ImportProgress("copying", "f", 3, 4)


@pytest.mark.parametrize(
    ("error", "code"), [(StoreError("full", "free some"), "store_error"), (RuntimeError("boom"), "internal_error")]
)
def test_work_that_raises_has_failed_with_the_reason(operations: Operations, error: Exception, code: str) -> None:
    def work(report: Report, cancelled: Cancelled) -> dict[str, Any]:
        raise error

    failed = ended(operations, operations.start("import", "m", work))
    assert failed.state is OperationState.FAILED
    assert failed.error is not None
    assert failed.error.code == code


def cancellable(started: threading.Event) -> Callable[[Report, Cancelled], dict[str, Any]]:
    def work(report: Report, cancelled: Cancelled) -> dict[str, Any]:
        started.set()
        while not cancelled():
            time.sleep(0.005)
        raise Conflict("cancelled while copying f", "")

    return work


def test_cancel_ends_the_work_as_cancelled(operations: Operations) -> None:
    started = threading.Event()
    operation = operations.start("import", "m", cancellable(started))
    assert started.wait(5)
    operations.cancel(operation.id)
    assert ended(operations, operation).state is OperationState.CANCELLED
    assert operations.cancel(operation.id).state is OperationState.CANCELLED


def test_close_cancels_what_runs_and_waits() -> None:
    operations, started = Operations(), threading.Event()
    operation = operations.start("import", "m", cancellable(started))
    assert started.wait(5)
    operations.close()
    assert operations.get(operation.id).state is OperationState.CANCELLED


def test_old_ones_are_forgotten_and_unknown_ones_refused(operations: Operations) -> None:
    for _ in range(60):
        ended(operations, operations.start("verify", "m", lambda report, cancelled: {}))
    assert 50 <= len(operations.all()) <= 51
    with pytest.raises(NotFound):
        operations.get("op_nothing")
