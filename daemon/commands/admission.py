"""bayard admission: whether new requests are let in."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from daemon.commands.client import admin
from daemon.commands.options import ConfigOption, JsonOption, RunDirOption, StateDirOption, settings_from

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Whether new requests are let in.")


@app.command()
def show(
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Running, waiting, and whether an operator holds new requests back."""
    with admin(settings_from(config, state_dir, run_dir)) as client:
        _show(client.get("admission"), as_json)


@app.command()
def pause(
    reason: Annotated[str, typer.Option(help="What clients and the audit are told.")] = "an operator asked for it",
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Answer new requests with 503 and Retry-After; what runs goes on."""
    with admin(settings_from(config, state_dir, run_dir)) as client:
        _show(client.post("admission/pause", {"reason": reason}), as_json)


@app.command()
def resume(
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let new requests in again."""
    with admin(settings_from(config, state_dir, run_dir)) as client:
        _show(client.post("admission/resume"), as_json)


def _show(answer: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(answer, indent=2))
        return
    state = f"paused: {answer['paused']}" if answer["paused"] else "open"
    print(f"{state}; {answer['running']} running, {answer['waiting']} of {answer['max_queue']} waiting")
