"""bayard config: the effective settings, each with its source."""

from __future__ import annotations

import json

import typer

from daemon.commands.options import ConfigOption, JsonOption, RunDirOption, StateDirOption, settings_from

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
    """Print every setting, its value, and where that came from: default, file, env or flag."""
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
