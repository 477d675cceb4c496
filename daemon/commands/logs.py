"""bayard logs: what a worker wrote."""

from __future__ import annotations

import json
import sys
from typing import Annotated
from urllib.parse import quote

import typer

from daemon.commands.client import admin
from daemon.commands.options import ConfigOption, JsonOption, RunDirOption, StateDirOption, settings_from
from daemon.commands.printable import printable

app = typer.Typer(rich_markup_mode=None)


@app.command()
def logs(
    worker: Annotated[str | None, typer.Argument(help="A worker; without one, the logs that there are.")] = None,
    lines: Annotated[int, typer.Option("-n", "--lines", min=1, max=10_000, help="So many of the newest.")] = 50,
    start: Annotated[int, typer.Option(min=0, max=5, help="0 the present start, 1 the one before it, up to 5.")] = 0,
    find: Annotated[str, typer.Option(help="Only lines that hold this.")] = "",
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on with every new line.")] = False,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a worker's log, of this start or one of those before, and follow it."""
    with admin(settings_from(config, state_dir, run_dir)) as client:
        if worker is None:
            items = client.get("logs")["items"]
            if as_json:
                print(json.dumps(items, indent=2))
                return
            for item in items:
                print(f"{item['worker']:<24} start {item['start']}  {item['size_bytes']:>12,} bytes  {item['path']}")
            if not items:
                print("no worker has written a log yet")
            return
        path = f"logs/{quote(worker, safe='')}"
        found = client.get(path, lines=lines, start=start, find=find or None)
        if as_json:
            print(json.dumps(found, indent=2))
        else:
            for line in found["lines"]:
                print(printable(line))
        if follow:
            for line in client.lines("logs/stream", worker=worker):
                if find in line:
                    print(json.dumps(line) if as_json else printable(line))
                    sys.stdout.flush()
