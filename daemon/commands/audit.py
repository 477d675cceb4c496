"""bayard audit: who changed what, and whether the log is whole."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any

import typer

from daemon.commands.client import offline_or_admin
from daemon.commands.options import ConfigOption, JsonOption, RunDirOption, StateDirOption, settings_from

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Who changed what, and whether the log is whole.")


@app.command("list")
def list_(
    count: Annotated[int, typer.Option("-n", "--count", min=1, max=500, help="So many of the newest.")] = 50,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """The newest changes: when, who, from where, what, before and after."""
    from daemon.tenants import audit

    with offline_or_admin(settings_from(config, state_dir, run_dir)) as reach:
        items: list[dict[str, Any]]
        if reach.admin is not None:
            items = reach.admin.get("audit", limit=count)["items"]
        else:
            assert reach.offline is not None
            records = reach.offline.store.read_sync(lambda session: audit.page(session, limit=count))
            items = [audit.as_dict(record) for record in records]
    if as_json:
        print(json.dumps(items, indent=2))
        return
    for item in items:
        changed = json.dumps(item["after"] if item["after"] is not None else item["before"], sort_keys=True)
        print(f"{item['at'][:19]}  {item['actor']:<16} {item['action']:<20} {item['subject']:<28} {changed}")
    if not items:
        print("nothing was changed yet")


@app.command()
def verify(
    contains: Annotated[
        str | None, typer.Option("--contains", metavar="HASH", help="A hash printed earlier, which is to be there yet.")
    ] = None,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Walk the hash chain from its start. Exit status 1 if an entry was changed or removed, or a kept hash is gone."""
    from daemon.tenants import audit

    if contains is not None and not re.fullmatch("[0-9a-f]{64}", contains):
        raise typer.BadParameter("a hash is 64 digits of 0-9 and a-f, as verify prints it", param_hint="--contains")
    with offline_or_admin(settings_from(config, state_dir, run_dir)) as reach:
        if reach.admin is not None:
            answer = reach.admin.get("audit/verify", contains=contains)
            entries, broken_at, head = answer["entries"], answer["broken_at"], answer["head"]
            has_kept = answer["has_kept"]
        else:
            assert reach.offline is not None
            check = reach.offline.store.read_sync(lambda session: audit.verify(session, contains))
            entries, broken_at, head, has_kept = check.entries, check.broken_at, check.head, check.has_kept
    if as_json:
        whole = broken_at is None
        answered = {"entries": entries, "whole": whole, "broken_at": broken_at, "head": head, "has_kept": has_kept}
        print(json.dumps(answered))
    elif broken_at is None:
        print(f"whole: {entries:,} entries, the newest with hash {head}")
    else:
        print(f"BROKEN at entry {broken_at}: it, or one before it, is not as it was written")
    if has_kept is False and not as_json:
        print(f"MISSING: no entry has the hash {contains}; what followed it was cut off, or it is of another log")
    if broken_at is not None or has_kept is False:
        raise typer.Exit(1)
