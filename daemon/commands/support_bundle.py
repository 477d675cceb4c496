"""bayard support-bundle: one redacted archive that tells a helper what this box is and does."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from daemon.commands.client import AdminClient, admin, answers
from daemon.commands.options import ConfigOption, JsonOption, RunDirOption, StateDirOption, settings_from
from daemon.commands.progress import follow
from engine.errors import BayardError, ConfigError

if TYPE_CHECKING:
    from daemon.settings import Settings

app = typer.Typer(rich_markup_mode=None)
_ASKED = ("status", "workers", "models", "plans", "events?limit=500", "admission", "certificates", "backups",
          "operations", "metrics/summary", "audit/verify", "logs")  # fmt: skip
_LOG_LINES = 500


@app.command()
def support_bundle(
    out: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="Archive to write; else named by the time.")
    ] = None,
    remote: Annotated[
        bool, typer.Option("--service", help="Let the running daemon write it, to state_dir/support.")
    ] = False,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Hardware, checks, settings, state and logs, without keys, names of people, addresses or texts of requests."""
    from hwdetect import doctor as checks
    from hwdetect.bundle import write_bundle
    from hwdetect.detect import detect

    settings = settings_from(config, state_dir, run_dir)
    if remote:
        with admin(settings) as client:
            done = follow(client, client.post("doctor/bundles")["item"])
        _show(done["path"], done["size_bytes"], as_json)
        return
    path = (out or Path(f"bayard-support-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.tar.gz")).absolute()
    machine = detect(Path("/"), state_dir=settings.state_dir)
    try:
        write_bundle(
            path, machine, checks.run(checks.Context(machine, settings.state_dir, ()), (), ()), extras(settings)
        )
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}.", "Name another file.") from error
    _show(str(path), path.stat().st_size, as_json)


def _show(path: str, size_bytes: int, as_json: bool) -> None:
    told = {"bundle": path, "size_bytes": size_bytes}
    print(json.dumps(told) if as_json else f"{path}, {size_bytes:,} bytes; look into it")


def extras(settings: Settings) -> dict[str, str]:
    """Texts by name; what cannot be had says why in its place. Tenants and usage are left out: they name customers."""
    from daemon.settings_load import setting_rows

    found = {"settings.json": json.dumps({row.key: row.value for row in setting_rows(settings)}, indent=1)}
    with AdminClient(settings.admin_socket) as client:
        try:
            if not answers(client):
                return found | {"daemon.txt": f"no daemon answers on {settings.admin_socket}"}
        except BayardError as error:
            return found | {"daemon.txt": str(error)}
        for path in _ASKED:
            found[f"{path.partition('?')[0].replace('/', '-')}.json"] = _told(client, path)
        for view in _items(client, "workers"):
            found[f"log-{view['id'].replace('/', '_')}.txt"] = _told(client, f"logs/{view['id']}?lines={_LOG_LINES}")
    return found


def _told(client: AdminClient, path: str) -> str:
    try:
        answer = client.get(path)
        answer.pop("hostname", None)
        return json.dumps(answer, indent=1)
    except BayardError as error:
        return str(error)


def _items(client: AdminClient, path: str) -> list[dict[str, Any]]:
    try:
        return list(client.get(path)["items"])
    except BayardError:
        return []
