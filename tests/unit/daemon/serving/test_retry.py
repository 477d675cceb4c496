"""A request that a worker lost before its first token is begun anew elsewhere; one that has begun ends, once."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest

from daemon.serving.retry import MOST_TRIES, Retry, begun_once
from engine.errors import ModelNotFound, NotReady
from engine.messages import ErrorInfo, FinishReason, TokenDelta

Given = list[TokenDelta]


def token(number: int) -> TokenDelta:
    return TokenDelta("r", [number])


def done() -> TokenDelta:
    return TokenDelta("r", [9], finish=FinishReason.LENGTH)


def fault(code: str = "worker_lost") -> TokenDelta:
    return TokenDelta("r", [], finish=FinishReason.ERROR, error=ErrorInfo(code, "gone"))


class Try:
    """Scripted attempts, and a router that has the next replica after so many looks."""

    def __init__(self, *attempts: Given, looks: int = 0, wanted: bool = True, error: Exception | None = None) -> None:
        self.attempts = list(attempts)
        self.looks = looks
        self.wanted = wanted
        self.error = error or NotReady("loading", retry_after_s=2.0)
        self.used: list[str] = []

    def submit(self) -> AsyncGenerator[tuple[int, TokenDelta], None]:
        async def run() -> AsyncGenerator[tuple[int, TokenDelta], None]:
            for delta in self.attempts.pop(0):
                yield 0, delta

        return run()

    def find(self) -> Any:
        if self.looks > 0:
            self.looks -= 1
            raise self.error
        return SimpleNamespace(worker=f"w{len(self.used)}")

    async def run(self, within_s: float = 2.0, deadline_s: float | None = None) -> Given:
        retry = Retry(self.find, lambda: self.wanted, within_s)
        deadline = None if deadline_s is None else time.monotonic() + deadline_s
        out = begun_once(self.submit, retry, lambda replica: self.used.append(replica.worker), deadline)
        return [delta async for _, delta in out]


async def test_lost_before_the_first_token_begins_anew_on_another_replica() -> None:
    tried = Try([fault()], [token(1), done()], looks=3)
    assert await tried.run() == [token(1), done()]
    assert tried.used == ["w0"]


async def test_lost_after_a_token_ends_with_the_one_error() -> None:
    tried = Try([token(1), fault()], [token(1), done()])
    assert await tried.run() == [token(1), fault()]
    assert tried.used == []


@pytest.mark.parametrize("code", ["invalid_parameter", "numerical_fault", "context_length_exceeded"])
async def test_what_would_fail_again_is_not_tried_again(code: str) -> None:
    tried = Try([fault(code)], [done()])
    assert await tried.run() == [fault(code)]


async def test_tries_are_bounded() -> None:
    tried = Try(*[[fault()]] * 5)
    assert await tried.run() == [fault()]
    assert len(tried.used) == MOST_TRIES - 1


async def test_nobody_waits_beyond_the_deadline_or_for_what_never_comes() -> None:
    begun = time.monotonic()
    assert await Try([fault()], [done()], looks=10_000).run(within_s=30, deadline_s=0.2) == [fault()]
    assert await Try([fault()], [done()], looks=10_000).run(within_s=0.2) == [fault()]
    latched = NotReady("given up", retry_after_s=60.0)
    assert await Try([fault()], [done()], looks=10_000, error=latched).run(within_s=30) == [fault()]
    assert await Try([fault()], [done()], looks=10_000, error=ModelNotFound("gone")).run(within_s=30) == [fault()]
    assert await Try([fault()], [done()], wanted=False).run() == [fault()]
    assert time.monotonic() - begun < 2
