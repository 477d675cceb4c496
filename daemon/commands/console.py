"""bayard console: the admin console in this terminal."""

from __future__ import annotations

import sys

import typer

from daemon.commands.options import ConfigOption, RunDirOption, StateDirOption, settings_from
from engine.errors import ConfigError

app = typer.Typer(rich_markup_mode=None)


@app.command()
def console(config: ConfigOption = None, state_dir: StateDirOption = None, run_dir: RunDirOption = None) -> None:
    """Show what the box does and what needs attention, live, until q is pressed."""
    settings = settings_from(config, state_dir, run_dir)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigError("the console needs a terminal; this is none.", "For plain text: bayard status")
    from admin_tui.app import run_console

    run_console(settings.admin_socket)
