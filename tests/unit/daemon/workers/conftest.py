"""A supervisor around the fake worker, and a way to send it requests."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from daemon.events import EventLog
from daemon.router import Router
from daemon.settings import Settings
from daemon.settings_load import load_settings
from daemon.store.session import Store
from daemon.workers.process import Spawner
from daemon.workers.states import WorkerState
from daemon.workers.supervisor import Supervisor
from daemon.workers.view import WorkerView
from engine.messages import SamplingParams, Submit, TokenDelta, WorkerConfig

FAKE = f"{sys.executable} -m tests.fakes.fake_worker"
SPEC = WorkerConfig("", "m", "/models/m", "")


@dataclass
class Bench:
    """Everything a test of the supervisor touches."""

    settings: Settings
    supervisor: Supervisor
    router: Router
    events: EventLog
    spawner: Spawner
    store: Store
    script_file: Path
    tasks: list[asyncio.Task[Any]] = field(default_factory=list)

    def view(self, name: str = "w") -> WorkerView:
        return self.supervisor.view(name)

    def pid(self, name: str = "w") -> int:
        pid = self.view(name).pid
        assert pid is not None
        return pid

    def script(self, **said: Any) -> None:
        """Change what running fake workers, and those that start later, do."""
        draft = self.script_file.with_suffix(".draft")
        draft.write_text(json.dumps(said))
        draft.replace(self.script_file)

    async def until(self, what: Callable[[], bool], seconds: float = 10.0) -> float:
        """Seconds it took; fails after `seconds`."""
        begun = time.monotonic()
        while not what():
            assert time.monotonic() - begun < seconds, [view.reason for view in self.supervisor.views()]
            await asyncio.sleep(0.01)
        return time.monotonic() - begun

    async def until_state(self, state: WorkerState, seconds: float = 10.0, name: str = "w") -> float:
        return await self.until(lambda: self.view(name).state is state, seconds)

    async def ready(self, name: str = "w", config: WorkerConfig = SPEC) -> None:
        await self.supervisor.want(name, config)
        await self.until_state(WorkerState.READY, name=name)

    def stream(self, request_id: str, max_tokens: int = 100_000) -> asyncio.Task[list[TokenDelta]]:
        """All deltas of one request to the ready replica."""
        client = self.router.replica_for("m").client

        async def read() -> list[TokenDelta]:
            submit = Submit(request_id, [1, 2, 3], SamplingParams(max_tokens=max_tokens))
            return [delta async for delta in client.submit(submit)]

        task = asyncio.create_task(read())
        self.tasks.append(task)
        return task

    def moves(self, name: str = "w") -> list[tuple[str | None, str | None]]:
        return [(e.from_state, e.to_state) for e in self.events.recent() if (e.kind, e.subject) == ("worker", name)]


@pytest.fixture
def spawner() -> Iterator[Spawner]:
    made = Spawner()
    yield made
    made.close()


@pytest.fixture
async def bench(spawner: Spawner) -> AsyncIterator[Bench]:
    with tempfile.TemporaryDirectory(prefix="bd-") as folder:
        settings = load_settings(
            None,
            {},
            {
                "state_dir": folder,
                "workers.command": FAKE,
                "workers.backoff_base_s": 0.05,
                "workers.backoff_max_s": 0.1,
                "workers.stall_after_s": 1.5,
                "workers.start_progress_timeout_s": 1.5,
                "workers.latch_after": 3,
            },
        )
        store = Store.open(settings)
        events = EventLog(store)
        script_file = Path(folder) / "script.json"
        router = Router(lambda path: object())  # type: ignore[arg-type,return-value]
        supervisor = Supervisor(settings, spawner, store, events, router, env={"FAKE_SCRIPT_FILE": str(script_file)})
        router.views = supervisor.views
        made = Bench(settings, supervisor, router, events, spawner, store, script_file)
        try:
            yield made
        finally:
            await supervisor.stop(0.0)
            for task in made.tasks:
                task.cancel()
            await asyncio.gather(*made.tasks, return_exceptions=True)
            store.close()
