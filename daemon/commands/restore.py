"""bayard restore: put a back-up in the place of what is there, now, or when the daemon starts the next time."""

from __future__ import annotations

import getpass
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from daemon.commands.backup import PassphraseFile, passphrase_of
from daemon.commands.options import ConfigOption, JsonOption, RunDirOption, StateDirOption, settings_from

if TYPE_CHECKING:
    from daemon.settings import Settings

app = typer.Typer(rich_markup_mode=None)


@app.command()
def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file that `bayard backup` made.")],
    passphrase_file: PassphraseFile = None,
    at_next_start: Annotated[
        bool, typer.Option("--at-next-start", help="Let the running daemon's next start do it; FILE is one of --list.")
    ] = False,
    withdraw: Annotated[
        bool, typer.Option("--withdraw", help="Take back what --at-next-start asked for; FILE is not looked at.")
    ] = False,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check a back-up and restore it; what was there before is kept in state_dir/backups."""
    from daemon.store import backup
    from daemon.store.lock import StateLock
    from daemon.store.session import Store
    from daemon.tenants import audit
    from daemon.tenants.principal import Actor

    settings = settings_from(config, state_dir, run_dir)
    if at_next_start or withdraw:
        _through_daemon(settings, file, withdraw, as_json)
        return
    secret = passphrase_of(passphrase_file)
    with StateLock.acquire(settings.state_dir):
        facts, kept = backup.restore(settings, file, secret)
        store = Store.open(settings)
        try:
            actor = Actor(f"{getpass.getuser()}@command", "command")
            after = {"file": str(file), "made_at": facts.made_at, "before_kept_as": kept and str(kept)}
            store.write_sync(lambda session: audit.append(session, actor, "backup.restore", "database", after=after))
        finally:
            store.close()
    told = {"restored": str(file), "made_at": facts.made_at.isoformat(), "before_kept_as": kept and str(kept)}
    if as_json:
        print(json.dumps(told, indent=2))
        return
    print(f"restored the state of {facts.made_at:%Y-%m-%d %H:%M:%S} UTC")
    if kept is not None:
        print(f"the database from before is {kept}")
    if facts.sealed and secret is None:
        print("private keys of TLS were left alone; --passphrase-file opens those in the back-up")
    print("`bayard models verify NAME` tells whether the models are still here")


def _through_daemon(settings: Settings, file: Path, withdraw: bool, as_json: bool) -> None:
    from daemon.commands.client import admin

    with admin(settings) as client:
        if withdraw:
            told = client.delete("backups/restore")
            sentence = f"{told['withdrawn'] or 'nothing'} is withdrawn"
        else:
            told = client.post(f"backups/{quote(file.name, safe='')}/restore")["item"]
            sentence = f"the next start restores {told['file']}"
    print(json.dumps(told, indent=2) if as_json else sentence)
