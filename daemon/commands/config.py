"""bayard config: the effective settings, each with its source."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from daemon.commands.options import ConfigOption, JsonOption, RunDirOption, StateDirOption, settings_from

if TYPE_CHECKING:
    from daemon.settings import Settings

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Settings, each with its source.")


@app.callback()
def group() -> None:
    """Settings, each with its source."""


@app.command()
def show(
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print every setting, its value, and where that came from: default, file, admin, env or flag."""
    from daemon.settings_load import setting_rows

    settings = settings_from(config, state_dir, run_dir)
    rows = setting_rows(settings)
    if as_json:
        listed = {row.key: {"value": row.value, "source": row.source, "default": row.default} for row in rows}
        print(json.dumps({"file": str(settings.file) if settings.file else None, "settings": listed}, indent=2))
        return
    print(f"# file: {settings.file or 'none was found'}")
    width = max(len(row.key) for row in rows)
    shown = max(len(json.dumps(row.value)) for row in rows)
    for row in rows:
        print(f"{row.key:<{width}}  {json.dumps(row.value):<{shown}}  {row.source}")


@app.command()
def reload(
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let the running daemon read its settings again, as SIGHUP does, and say what needs a restart."""
    from daemon.commands.client import admin

    with admin(settings_from(config, state_dir, run_dir)) as client:
        answer = client.post("settings/reload")
    if as_json:
        print(json.dumps(answer, indent=2))
        return
    print(f"applied: {', '.join(answer['applied']) or 'nothing has changed that can change at once'}")
    if answer["needs_restart"]:
        print(f"after a restart: {', '.join(answer['needs_restart'])}")


@app.command("set")
def set_(
    key: Annotated[str, typer.Argument(metavar="KEY", help="A setting, as `bayard config show` names it.")],
    value: Annotated[str, typer.Argument(metavar="VALUE", help="Its new value; words need no quotes.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what it would do, and do nothing.")] = False,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change a setting for good, above the settings file; some hold at once, the others after a restart."""
    _change({key: _read(value)}, dry_run, settings_from(config, state_dir, run_dir), as_json)


@app.command()
def unset(
    key: Annotated[str, typer.Argument(metavar="KEY", help="A setting that `bayard config set` changed.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what it would do, and do nothing.")] = False,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take back what `bayard config set` changed: the settings file, or the default, holds again."""
    _change({key: None}, dry_run, settings_from(config, state_dir, run_dir), as_json)


def _read(value: str) -> Any:
    """true, 5 and 0.5 as what they are; anything else is text."""
    try:
        found = json.loads(value)
    except ValueError:
        return value
    return found if isinstance(found, bool | int | float) else value


def _change(values: dict[str, Any], dry_run: bool, settings: Settings, as_json: bool) -> None:
    from daemon.commands.client import offline_or_admin
    from daemon.settings_change import keep, plan_changes

    with offline_or_admin(settings) as reach:
        if reach.admin is not None:
            told = reach.admin.patch("settings", {"values": values}, dry_run="true" if dry_run else None)
        else:
            changes, stored = plan_changes(settings, values)
            told = {"consequences": [str(change) for change in changes]}
            if not dry_run:
                keep(settings, stored)
                facts = {change.key: {"before": change.before, "after": change.after} for change in changes}
                reach.record("settings.change", "settings", facts)
                told = {"applied": [], "needs_restart": [change.key for change in changes], "certificate": False}
    if as_json:
        print(json.dumps(told, indent=2))
    elif dry_run:
        print("\n".join(told["consequences"]) or "nothing changes")
    else:
        print(f"applied: {', '.join(told['applied']) or 'nothing at once'}")
        if told["needs_restart"]:
            print(f"from the next start on: {', '.join(told['needs_restart'])}")
