"""bayard keys: create, list, rotate and revoke API keys."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from daemon.commands.options import ConfigOption, JsonOption, RunDirOption, StateDirOption, settings_from

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="API keys: create, list, rotate, revoke.")
MOST_DAYS = 36_500  # a date that every clock and database can write
MOST_OVERLAP_HOURS = 90 * 24  # as the service has it
ROLES = ("inference", "metrics", "operator", "admin")


@app.command()
def create(
    tenant: Annotated[str, typer.Option(help="Name or id of the tenant it is for.")],
    name: Annotated[str, typer.Option(help="What it is for, to tell keys apart.")] = "",
    role: Annotated[
        str, typer.Option(help="inference, metrics (reads /metrics), operator or admin (over the admin TLS port).")
    ] = "inference",
    expires_days: Annotated[
        float | None, typer.Option(min=0.001, max=MOST_DAYS, help="Valid for so many days.")
    ] = None,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a key. It is printed once, alone on standard output, and cannot be shown again."""
    from daemon.commands.tenancy import tenancy

    if role not in ROLES:
        raise typer.BadParameter(f"{role!r} is none of {', '.join(ROLES)}", param_hint="--role")
    expires_at = _after(expires_days)
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


@app.command()
def rotate(
    key: Annotated[str, typer.Argument(help="Id or prefix, as `bayard keys list` shows it.")],
    overlap_hours: Annotated[
        float, typer.Option(min=0, max=MOST_OVERLAP_HOURS, help="The old key works for so long beside the new one.")
    ] = 24,
    expires_days: Annotated[
        float | None, typer.Option(min=0.001, max=MOST_DAYS, help="The new key is valid for so many days.")
    ] = None,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a new key in the place of one. It is printed once, alone on standard output."""
    from daemon.commands.tenancy import tenancy

    body = {"overlap_s": overlap_hours * 3600, "expires_at": _after(expires_days)}
    with tenancy(settings_from(config, state_dir, run_dir)) as reached:
        item, secret = reached.rotate_key(key.removesuffix(".."), body)
    if as_json:
        print(json.dumps({**item, "secret": secret}, indent=2))
        return
    print(secret)
    print(f"Key {item['id']}; the old one works for {overlap_hours:g} h more.", file=sys.stderr)


def _after(days: float | None) -> str | None:
    return None if days is None else (datetime.now(UTC) + timedelta(days=days)).isoformat()
