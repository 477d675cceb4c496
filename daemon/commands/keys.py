"""bayard keys: create, list and revoke API keys."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from daemon.commands.options import ConfigOption, JsonOption, RunDirOption, StateDirOption, settings_from

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="API keys: create, list, revoke.")


@app.command()
def create(
    tenant: Annotated[str, typer.Option(help="Name or id of the tenant it is for.")],
    name: Annotated[str, typer.Option(help="What it is for, to tell keys apart.")] = "",
    role: Annotated[
        str, typer.Option(help="inference; admin is kept with the key, and grants nothing more yet.")
    ] = "inference",
    expires_days: Annotated[float | None, typer.Option(min=0.001, help="Valid for so many days.")] = None,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a key. It is printed once, alone on standard output, and cannot be shown again."""
    from datetime import UTC, datetime, timedelta

    from daemon.commands.tenancy import tenancy

    if role not in ("inference", "admin"):
        raise typer.BadParameter(f"{role!r} is neither inference nor admin", param_hint="--role")
    expires_at = None if expires_days is None else (datetime.now(UTC) + timedelta(days=expires_days)).isoformat()
    with tenancy(settings_from(config, state_dir, run_dir)) as reached:
        item, secret = reached.issue_key(tenant, {"name": name, "role": role, "expires_at": expires_at})
    if as_json:
        print(json.dumps({**item, "secret": secret}, indent=2))
        return
    print(secret)
    print(f"Key {item['id']} for tenant {tenant}; it is not shown again.", file=sys.stderr)


@app.command("list")
def list_keys(
    tenant: Annotated[str | None, typer.Option(help="Of this tenant only.")] = None,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Every key: prefix, state and last use; never the key."""
    from daemon.commands.tenancy import tenancy

    with tenancy(settings_from(config, state_dir, run_dir)) as reached:
        found = reached.keys(tenant)
        names = {item["id"]: item["name"] for item in reached.tenants()}
    if as_json:
        print(json.dumps(found, indent=2))
        return
    if not found:
        print("No keys. Make one: bayard keys create --tenant NAME")
        return
    for item in found:
        used = f"used {item['last_used_at'][:19]}" if item["last_used_at"] else "never used"
        owner = names.get(item["tenant_id"], item["tenant_id"])
        label = f"  {item['name']}" if item["name"] else ""
        print(f"{item['id']}  {item['prefix']}..  {item['state']:<7}  {item['role']:<9}  {owner}  {used}{label}")


@app.command()
def revoke(
    key: Annotated[str, typer.Argument(help="Id or prefix, as `bayard keys list` shows it.")],
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Refuse a key from now on. Streams that it began are finished."""
    from daemon.commands.tenancy import tenancy

    with tenancy(settings_from(config, state_dir, run_dir)) as reached:
        item = reached.revoke_key(key.removesuffix(".."))
    print(json.dumps(item, indent=2) if as_json else f"key {item['id']} ({item['prefix']}..) is revoked")
