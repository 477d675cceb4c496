"""bayard workers: list them, and what an operator may do to one."""

from __future__ import annotations

import json
from typing import Annotated
from urllib.parse import quote

import typer

from daemon.commands.client import admin
from daemon.commands.options import ConfigOption, JsonOption, RunDirOption, StateDirOption, settings_from
from daemon.commands.status import no_worker
from daemon.settings import Settings

Name = Annotated[str, typer.Argument(metavar="NAME", help="A worker, as `bayard workers list` names it.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what it would do, and do nothing.")]

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
        box = None if items or as_json else client.get("status")
    if as_json:
        print(json.dumps(items, indent=2))
        return
    if box is not None:
        print(no_worker(box))
    for item in items:
        print(f"{item['id']:<24} {item['state']:<9} {item['model']:<24} {item['reason']}")
        if item["fix"]:
            print(f"{'':<24} fix: {item['fix']}")


@app.command()
def restart(
    name: Name,
    dry_run: DryRun = False,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Drain a worker and start it again; one that was given up after fast exits is tried anew."""
    _act("restart", name, dry_run, settings_from(config, state_dir, run_dir), as_json)


@app.command()
def drain(
    name: Name,
    dry_run: DryRun = False,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take no more requests, wait for those that run however long they take, and sleep until woken."""
    _act("drain", name, dry_run, settings_from(config, state_dir, run_dir), as_json)


@app.command()
def stop(
    name: Name,
    dry_run: DryRun = False,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """As drain, waiting no longer than workers.stop_grace_s."""
    _act("stop", name, dry_run, settings_from(config, state_dir, run_dir), as_json)


@app.command()
def wake(
    name: Name,
    dry_run: DryRun = False,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start a worker that sleeps."""
    _act("wake", name, dry_run, settings_from(config, state_dir, run_dir), as_json)


@app.command()
def kill(
    name: Name,
    dry_run: DryRun = False,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """End its process now; its streams end with an error, and it is started again."""
    _act("kill", name, dry_run, settings_from(config, state_dir, run_dir), as_json)


@app.command("clear-latch")
def clear_latch(
    name: Name,
    dry_run: DryRun = False,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Try a worker anew that was given up after fast exits."""
    _act("clear-latch", name, dry_run, settings_from(config, state_dir, run_dir), as_json)


def _act(action: str, name: str, dry_run: bool, settings: Settings, as_json: bool) -> None:
    with admin(settings) as client:
        answer = client.post(f"workers/{quote(name, safe='')}/{action}", dry_run="true" if dry_run else None)
    item = answer if dry_run else answer["item"]
    if as_json:
        print(json.dumps(item, indent=2))
    elif dry_run:
        print("\n".join(item["consequences"]))
    else:
        print(f"{item['id']} is {item['state']}: {item['reason']}")
