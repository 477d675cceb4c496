"""GET logs and logs/stream: what workers wrote, of this start and some before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import StreamingResponse

from daemon.api.admin.access import Services, Viewer
from daemon.api.admin.answers import Answer, Item
from daemon.workers.worker_log import STARTS_KEPT, LogReader, earlier, last_lines
from engine.errors import NotFound

router = APIRouter(prefix="/logs", tags=["logs"])
LOOK_EVERY_S = 0.25
COMMENT_AFTER_S = 10.0
_MOST_BYTES = 4 << 20


class LogFileItem(Item):
    """start: 0 is the present or last start, 1 the one before it, and so on."""

    worker: str
    start: int
    path: str
    size_bytes: int


class LogFilesAnswer(Answer):
    items: list[LogFileItem]


class LogAnswer(Answer):
    """Oldest line first."""

    worker: str
    start: int
    lines: list[str]


@router.get("")
async def get_logs(services: Services, caller: Viewer) -> LogFilesAnswer:
    def read() -> list[LogFileItem]:
        items = []
        for view in services.supervisor.views():
            for start in range(STARTS_KEPT + 1):
                path = Path(earlier(str(view.log_path), start))
                if path.is_file():
                    size = path.stat().st_size
                    items.append(LogFileItem(worker=view.name, start=start, path=str(path), size_bytes=size))
        return items

    return LogFilesAnswer(items=await asyncio.to_thread(read))


@router.get("/stream", responses={200: {"content": {"text/event-stream": {}}}})
async def get_log_stream(services: Services, caller: Viewer, worker: str) -> StreamingResponse:
    """Every line from now on, through restarts, until the client goes."""
    path = services.supervisor.view(worker).log_path
    headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
    return StreamingResponse(_follow(path), media_type="text/event-stream", headers=headers)


@router.get("/{worker:path}")
async def get_log(
    worker: str,
    services: Services,
    caller: Viewer,
    start: Annotated[int, Query(ge=0, le=STARTS_KEPT)] = 0,
    lines: Annotated[int, Query(ge=1, le=10_000)] = 200,
    find: Annotated[str, Query(max_length=200)] = "",
) -> LogAnswer:
    """The newest lines, of those that hold `find`."""
    path = Path(earlier(str(services.supervisor.view(worker).log_path), start))
    if not path.is_file():
        raise NotFound(f"worker {worker} has no log of {'this start' if start == 0 else f'{start} starts ago'}.")
    count = lines if not find else 1_000_000
    found = await asyncio.to_thread(last_lines, path, count, most_bytes=_MOST_BYTES)
    chosen = [line for line in found if find in line][-lines:]
    return LogAnswer(worker=worker, start=start, lines=chosen)


async def _follow(path: Path) -> AsyncIterator[str]:
    reader = LogReader(path)
    quiet_s = 0.0
    while True:
        lines = await asyncio.to_thread(reader.new_lines)
        if lines:
            quiet_s = 0.0
            yield "".join(f"data: {line}\n\n" for line in lines)
        elif quiet_s >= COMMENT_AFTER_S:
            quiet_s = 0.0
            yield ": ka\n\n"
        quiet_s += LOOK_EVERY_S
        await asyncio.sleep(LOOK_EVERY_S)
