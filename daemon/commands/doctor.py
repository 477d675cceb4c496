"""bayard doctor: is the box sound, and what to do where it is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from daemon.commands.options import ConfigOption, JsonOption, RunDirOption, StateDirOption, settings_from
from engine.errors import ConfigError, InvalidParameter

if TYPE_CHECKING:
    from daemon.settings import Settings

app = typer.Typer(rich_markup_mode=None)


@app.command()
def doctor(
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
    only: Annotated[
        list[str] | None, typer.Option("--only", help="Only this check or group; repeatable.", metavar="ID")
    ] = None,
    skip: Annotated[
        list[str] | None, typer.Option("--skip", help="Not this check or group; repeatable.", metavar="ID")
    ] = None,
    remote: Annotated[
        bool, typer.Option("--service", help="Let the running daemon check, as its own user sees the box.")
    ] = False,
    bundle: Annotated[
        Path | None, typer.Option("--bundle", help="Also write a redacted archive for support.", metavar="FILE.tar.gz")
    ] = None,
) -> None:
    """Check the box. Exit status: 0 sound, 1 warnings, 2 errors."""
    from hwdetect import doctor as checks
    from hwdetect.bundle import write_bundle
    from hwdetect.detect import detect
    from hwdetect.facts import encode

    settings = settings_from(config, state_dir, run_dir)
    if remote:
        raise typer.Exit(_through_daemon(settings, list(only or ()), list(skip or ()), as_json))
    machine = detect(state_dir=settings.state_dir)
    context = checks.Context(machine, settings.state_dir, _ports(settings))
    try:
        results = checks.run(context, only or (), skip or ())
    except ValueError as error:
        raise InvalidParameter(f"{error}.", "See all ids: bayard doctor --json") from error
    if as_json:
        print(json.dumps([encode(result) for result in results], indent=2, ensure_ascii=False))
    else:
        print(checks.table(results), end="")
    if bundle is not None:
        try:
            write_bundle(bundle, machine, results, {"settings.json": _settings_text(settings)})
        except OSError as error:
            raise ConfigError(f"{bundle} cannot be written: {error.strerror}.", "Name another file.") from error
        typer.echo(f"wrote {bundle}: look through it before you send it", err=True)
    raise typer.Exit(checks.exit_status(results))


def _ports(settings: Settings) -> tuple[tuple[str, int], ...]:
    """The ports that must be free: none while this daemon itself listens on them."""
    if settings.admin_socket.exists():
        return ()
    wanted = [(settings.http.host, settings.http.port)]
    if settings.grpc.enabled:
        wanted.append((settings.grpc.host, settings.grpc.port))
    return tuple((host, port) for host, port in wanted if port)


def _settings_text(settings: Settings) -> str:
    from daemon.settings_load import setting_rows

    return json.dumps([{"key": r.key, "value": str(r.value), "source": str(r.source)} for r in setting_rows(settings)])


def _through_daemon(settings: Settings, only: list[str], skip: list[str], as_json: bool) -> int:
    from daemon.commands.client import admin
    from daemon.commands.progress import follow
    from hwdetect import doctor as checks

    with admin(settings) as client:
        found = follow(client, client.post("doctor/runs", {"only": only, "skip": skip})["item"])["items"]
    results = [checks.Result(**{**item, "verdict": checks.Verdict(item["verdict"])}) for item in found]
    print(json.dumps(found, indent=2, ensure_ascii=False) if as_json else checks.table(results), end="")
    return checks.exit_status(results)
