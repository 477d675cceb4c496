"""bayard restore: put a back-up in the place of what is there. The daemon has to be stopped."""

from __future__ import annotations

import getpass
import json
from pathlib import Path
from typing import Annotated

import typer

from daemon.commands.backup import PassphraseFile, passphrase_of
from daemon.commands.options import ConfigOption, JsonOption, RunDirOption, StateDirOption, settings_from

app = typer.Typer(rich_markup_mode=None)


@app.command()
def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file that `bayard backup` made.")],
    passphrase_file: PassphraseFile = None,
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
