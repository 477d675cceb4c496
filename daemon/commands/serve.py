"""bayard serve: the daemon in the foreground."""

from __future__ import annotations

from typing import Annotated

import typer

from daemon.commands.options import ConfigOption, RunDirOption, SetOption, StateDirOption, pairs

app = typer.Typer(rich_markup_mode=None)


@app.command()
def serve(
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    host: Annotated[str | None, typer.Option(help="Address for HTTP and gRPC.")] = None,
    port: Annotated[int | None, typer.Option(help="HTTP port; 0 takes any free one.")] = None,
    grpc_port: Annotated[int | None, typer.Option(help="gRPC port; 0 takes any free one.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
    log_format: Annotated[str | None, typer.Option(help="console or json.")] = None,
    settings: SetOption = None,
) -> None:
    """Run the daemon until SIGTERM or Ctrl-C; a second one waits for nothing."""
    from daemon.run import serve as run
    from daemon.settings_load import load_settings

    flags = {
        "state_dir": state_dir,
        "run_dir": run_dir,
        "http.host": host,
        "grpc.host": host,
        "http.port": port,
        "grpc.port": grpc_port,
        "log.level": log_level,
        "log.format": log_format,
        **pairs(settings),
    }
    run(load_settings(config, flags=flags))
