"""Options that many commands share, and settings made from them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from daemon.settings import Settings

ConfigOption = Annotated[
    Path | None, typer.Option("--config", help="Settings file instead of the usual one.", metavar="FILE")
]
StateDirOption = Annotated[
    Path | None, typer.Option("--state-dir", help="State folder of the daemon that is meant.", metavar="DIR")
]
RunDirOption = Annotated[Path | None, typer.Option("--run-dir", help="Folder of its sockets.", metavar="DIR")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="Any setting, as KEY=VALUE; repeatable.", metavar="KEY=VALUE")
]


def settings_from(
    config: Path | None = None, state_dir: Path | None = None, run_dir: Path | None = None, **flags: Any
) -> Settings:
    """Settings with these flags on top; dots of a key are given as two underscores. Raises: ConfigError"""
    from daemon.settings_load import load_settings

    dotted = {key.replace("__", "."): value for key, value in flags.items()}
    return load_settings(config, flags={"state_dir": state_dir, "run_dir": run_dir, **dotted})


def pairs(texts: list[str] | None) -> dict[str, str]:
    """What --set gave. Raises: typer.BadParameter"""
    found = {}
    for text in texts or []:
        key, sign, value = text.partition("=")
        if not sign:
            raise typer.BadParameter(f"{text!r} is no KEY=VALUE")
        found[key.strip()] = value
    return found
