"""A daemon's admin API without a daemon: canned answers, and switches for the ways in which it can fail."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx

from admin_tui.clock import Clock

NOW = datetime(2026, 9, 15, 12, 2, 31, tzinfo=UTC)
GIB = 1 << 30


def ago(seconds: float) -> str:
    return (NOW - timedelta(seconds=seconds)).isoformat()


class StillClock(Clock):
    """Stands at NOW; `pass_s` moves both of its hands."""

    zone = UTC

    def __init__(self) -> None:
        self.passed_s = 0.0

    def pass_s(self, seconds: float) -> None:
        self.passed_s += seconds

    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.passed_s)

    def mono(self) -> float:
        return 1000.0 + self.passed_s


class FakeAdmin(httpx.AsyncBaseTransport):
    """answers: by path. down: nobody listens. refusals: status and body by path. posts: what was written.

    hangs: whether a question is never answered, and never fails
    """

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = deepcopy(answers)
        self.refusals: dict[str, tuple[int, dict[str, Any]]] = {}
        self.posts: list[tuple[str, Any]] = []
        self.requests = 0
        self.down = False
        self.silent = False
        self.hangs: Callable[[], bool] = lambda: False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.requests += 1
        if self.hangs():
            await asyncio.Event().wait()
        if self.down:
            raise httpx.ConnectError("[Errno 2] No such file or directory")
        if self.silent:
            raise httpx.ReadTimeout("")
        path = request.url.path.removeprefix("/admin/v1/")
        if path in self.refusals:
            status, body = self.refusals[path]
            return httpx.Response(status, json=body)
        if request.method == "POST":
            self.posts.append((path, json.loads(request.content or b"null")))
            return httpx.Response(200, json={})
        if path not in self.answers:
            return httpx.Response(404, json={"code": "not_found", "message": f"no /{path} here", "hint": ""})
        return httpx.Response(200, json=self.answers[path])
