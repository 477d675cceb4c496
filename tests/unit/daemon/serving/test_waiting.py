"""Requests for models that are on their way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from daemon.api.sse import COMMENT, SseStream
from daemon.serving.waiting import replica_when_ready
from engine.errors import ModelNotFound, NotReady


class Finder:
    """Raises what the test says so many times, then finds."""

    def __init__(self, error: Exception, times: int) -> None:
        self.error, self.left = error, times

    def __call__(self) -> Any:
        if self.left:
            self.left -= 1
            raise self.error
        return "replica"


async def test_request_for_a_loading_model_waits_and_is_told_what_for() -> None:
    told: list[str] = []
    finder = Finder(NotReady("the model is starting (reading, 34 %)", retry_after_s=2.0), 2)
    found: object = await replica_when_ready(finder, 5.0, told.append)
    assert found == "replica"
    assert told == ["the model is starting (reading, 34 %)"] * 2 + [""]


@pytest.mark.parametrize("error", [NotReady("down", retry_after_s=60.0), ModelNotFound("there is none")])
async def test_what_is_not_coming_is_not_waited_for(error: Exception) -> None:
    with pytest.raises(type(error)):
        await asyncio.wait_for(replica_when_ready(Finder(error, 1000), 60.0), 1)


async def test_waiting_ends_with_its_time_and_with_the_daemon() -> None:
    loading = NotReady("loading", retry_after_s=2.0)
    with pytest.raises(NotReady):
        await asyncio.wait_for(replica_when_ready(Finder(loading, 1000), 0.1), 2)
    with pytest.raises(NotReady):
        await asyncio.wait_for(replica_when_ready(Finder(loading, 1000), 60.0, wanted=lambda: False), 1)


def test_stream_that_waits_comments_its_progress_sooner_than_a_silent_one() -> None:
    stream = SseStream(None, lambda: None)  # type: ignore[arg-type]
    begun = stream._written_mono
    assert not stream.silent(begun + 3.0, 10.0)
    stream.waits_for("the model is starting\n(34 %)")
    assert stream.silent(begun + 3.0, 10.0)
    assert stream.comment == b": the model is starting (34 %)\n\n"
    stream.waits_for("")
    assert stream.comment == COMMENT
