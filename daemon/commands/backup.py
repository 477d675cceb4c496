"""bayard backup: save the state while the daemon runs; list and check what was saved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from daemon.commands.client import offline_or_admin
from daemon.commands.options import ConfigOption, JsonOption, RunDirOption, StateDirOption, settings_from
from engine.errors import ConfigError
from engine.spec.place import place_of

app = typer.Typer(rich_markup_mode=None)
PassphraseFile = Annotated[
    Path | None, typer.Option("--passphrase-file", help="Its first line seals the private keys of TLS.")
]


@app.command()
def backup(
    out: Annotated[Path | None, typer.Option(help="The file to write; else one in state_dir/backups.")] = None,
    passphrase_file: PassphraseFile = None,
    stored_files: Annotated[
        bool, typer.Option("--files/--no-files", help="With what clients uploaded and batches wrote.")
    ] = True,
    list_: Annotated[bool, typer.Option("--list", help="List the back-ups in state_dir/backups instead.")] = False,
    check: Annotated[Path | None, typer.Option(help="Check this back-up instead.")] = None,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Save database, settings, certificates and stored files in one checked file. `bayard restore` puts it back."""
    from daemon.api.admin.backups import backup_item
    from daemon.commands.progress import follow
    from daemon.store import backup as store

    settings = settings_from(config, state_dir, run_dir)
    if check is not None:
        _show([backup_item(store.check(check)).model_dump(mode="json")], as_json)
        return
    if list_:
        _show([backup_item(facts).model_dump(mode="json") for facts in store.listed(settings)], as_json)
        return
    path = place_of(str(out)).absolute() if out is not None else None
    secret = passphrase_of(passphrase_file)
    with offline_or_admin(settings) as reach:
        if reach.admin is not None:
            body = {"path": None if path is None else str(path), "passphrase": secret, "stored_files": stored_files}
            item = follow(reach.admin, reach.admin.post("backups", body)["item"])
        else:
            reach.record("backup.create", "backups", {"path": path and str(path), "sealed": secret is not None})
            item = backup_item(store.create(settings, path, secret, with_files=stored_files)).model_dump(mode="json")
    _show([item], as_json)
    if not item["sealed"] and (settings.state_dir / "tls" / "ca.key").exists() and not as_json:
        print("private keys of TLS are not in it; --passphrase-file takes them along, sealed")


def passphrase_of(path: Path | None) -> str | None:
    """Raises: ConfigError"""
    if path is None:
        return None
    try:
        first = path.read_text(encoding="utf-8").splitlines()[:1]
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}.", "Check it.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not text in UTF-8.", "Write the passphrase on its first line.") from error
    if not first or not first[0].strip():
        raise ConfigError(f"{path} has no passphrase on its first line.", "Write one there.")
    return first[0].strip()


def _show(items: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print(json.dumps(items, indent=2))
        return
    for item in items:
        sealed = "with private keys" if item["sealed"] else "no private keys"
        files = "no stored files" if item["stored_files"] is None else f"{item['stored_files']} stored files"
        what = f"{item['revision']}  {sealed}, {files}"
        print(f"{item['path']}  {item['size_bytes']:,} bytes  {item['made_at'][:19]}  {what}")
    if not items:
        print("there is no back-up; `bayard backup` makes one")
