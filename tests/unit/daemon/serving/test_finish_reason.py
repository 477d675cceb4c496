"""What a client is told of how the engine ended its choice."""

from __future__ import annotations

import pytest

from daemon.serving.generation import finish_reason
from engine.errors import Cancelled, WorkerLost
from engine.messages import FinishReason, TokenDelta


def test_abort_that_an_operator_asked_for_is_cancelled() -> None:
    with pytest.raises(Cancelled, match="An operator ended the request"):
        finish_reason(TokenDelta("r", finish=FinishReason.ABORT), asked=True)


def test_abort_that_nobody_asked_for_is_the_workers_fault_and_worth_a_retry() -> None:
    with pytest.raises(WorkerLost, match="The worker was stopped") as caught:
        finish_reason(TokenDelta("r", finish=FinishReason.ABORT), asked=False)
    assert caught.value.http_status == 503
