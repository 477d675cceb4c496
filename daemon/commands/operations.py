"""bayard operations: long work that was started, how far it is, and cancelling it."""

from __future__ import annotations

import json
from typing import Annotated, Any
from urllib.parse import quote

import typer

from daemon.commands.client import admin
from daemon.commands.options import ConfigOption, JsonOption, RunDirOption, StateDirOption, settings_from

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Long work: imports, checks, back-ups.")


@app.command("list")
def list_(
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Those that run and those that ended lately, newest first."""
    with admin(settings_from(config, state_dir, run_dir)) as client:
        items = client.get("operations")["items"]
    if as_json:
        print(json.dumps(items, indent=2))
        return
    for item in items:
        print(_line(item))
    if not items:
        print("nothing was started since the daemon runs")


@app.command()
def cancel(
    operation: Annotated[str, typer.Argument(metavar="ID", help="As `bayard operations list` shows it.")],
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask it to stop at its next step; harmless once it has ended."""
    with admin(settings_from(config, state_dir, run_dir)) as client:
        item = client.post(f"operations/{quote(operation, safe='')}/cancel")["item"]
    print(json.dumps(item, indent=2) if as_json else _line(item))


def _line(item: dict[str, Any]) -> str:
    progress, error = item["progress"], item["error"]
    told = error["message"] if error else ""
    if progress and not item["ended_at"] and progress["total_bytes"]:
        told = f"{progress['stage']}, {100 * progress['done_bytes'] // progress['total_bytes']} %"
    return f"{item['id']}  {item['kind']:<14} {item['state']:<9} {item['subject']}  {told}".rstrip()
