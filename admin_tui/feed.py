"""The console's picture of the daemon: the last answer, or the last error, of each endpoint asked."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar

import msgspec

from admin_tui.answers import (
    Accelerators,
    Events,
    Host,
    Models,
    Plans,
    Status,
    Summary,
    Timeline,
    WhoAmI,
    Workers,
)
from admin_tui.client import AdminClient
from admin_tui.clock import Clock
from admin_tui.errors import ConsoleError, TimedOut, Unreachable
from admin_tui.link import Link

T = TypeVar("T", bound=msgspec.Struct)

ENDPOINTS: dict[type[msgspec.Struct], str] = {
    Status: "status",
    WhoAmI: "whoami",
    Host: "host",
    Workers: "workers",
    Models: "models",
    Plans: "plans",
    Accelerators: "accelerators",
    Summary: "metrics/summary",
    Timeline: "schedule/timeline",
    Events: "events?limit=50",
}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is known now. An endpoint may have an old answer and a new error at once."""

    answers: dict[type[msgspec.Struct], msgspec.Struct] = field(default_factory=dict)
    errors: dict[type[msgspec.Struct], ConsoleError] = field(default_factory=dict)
    link: Link = field(default_factory=Link)
    answered_at: datetime | None = None

    def get(self, kind: type[T]) -> T | None:
        answer = self.answers.get(kind)
        return answer if isinstance(answer, kind) else None

    def error(self, kind: type[msgspec.Struct]) -> ConsoleError | None:
        return self.errors.get(kind)


class Feed:
    """Owner: the app; shared by the screens, so that going to another one never shows less than is known."""

    def __init__(self, client: AdminClient, clock: Clock) -> None:
        self.client = client
        self.clock = clock
        self.snapshot = Snapshot()

    async def refresh(self, kinds: Iterable[type[msgspec.Struct]]) -> Snapshot:
        """Ask for these at once and keep what comes. Blocks: at most the client's deadline."""
        wanted = list(kinds)
        results = await asyncio.gather(*(self._ask(kind) for kind in wanted))
        answers, errors = dict(self.snapshot.answers), dict(self.snapshot.errors)
        for kind, result in zip(wanted, results, strict=True):
            if isinstance(result, ConsoleError):
                errors[kind] = result
            else:
                answers[kind] = result
                errors.pop(kind, None)
        failures = [result for result in results if isinstance(result, Unreachable | TimedOut)]
        heard = any(not isinstance(result, Unreachable | TimedOut) for result in results)
        link, answered_at = self.snapshot.link, self.snapshot.answered_at
        if heard:
            link, answered_at = link.answered(self.clock.mono()), self.clock.now()
        elif failures:
            link = link.failed(failures[0].message, failures[0].hint, down=isinstance(failures[0], Unreachable))
        self.snapshot = Snapshot(answers=answers, errors=errors, link=link, answered_at=answered_at)
        return self.snapshot

    async def _ask(self, kind: type[msgspec.Struct]) -> msgspec.Struct | ConsoleError:
        try:
            return await self.client.get(ENDPOINTS[kind], kind)
        except ConsoleError as error:
            return error
