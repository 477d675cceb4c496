"""bayard workers: list them, restart one."""

from __future__ import annotations

import json
from typing import Annotated
from urllib.parse import quote

import typer

from daemon.commands.client import admin
from daemon.commands.options import ConfigOption, JsonOption, RunDirOption, StateDirOption, settings_from

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="The processes that run the models.")


@app.callback()
def group() -> None:
    """The processes that run the models."""


@app.command("list")
def list_(
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Every worker with its state, and why it is not ready."""
    with admin(settings_from(config, state_dir, run_dir)) as client:
        items = client.get("workers")["items"]
    if as_json:
        print(json.dumps(items, indent=2))
        return
    if not items:
        print("no worker is wanted: no plan is active, or it names no model")
    for item in items:
        print(f"{item['id']:<24} {item['state']:<9} {item['model']:<24} {item['reason']}")
        if item["fix"]:
            print(f"{'':<24} fix: {item['fix']}")


@app.command()
def restart(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A worker, as `bayard workers list` names it.")],
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Drain a worker and start it again; one that was given up after fast exits is tried anew."""
    with admin(settings_from(config, state_dir, run_dir)) as client:
        item = client.post(f"workers/{quote(name, safe='')}/restart")["item"]
    print(json.dumps(item, indent=2) if as_json else f"{item['id']} is {item['state']}: {item['reason']}")
