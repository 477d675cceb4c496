"""bayard tenants: who may use the box, and how much of it."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from daemon.commands.options import ConfigOption, JsonOption, RunDirOption, StateDirOption, settings_from
from daemon.tenants.limits import MOST_REQUESTS, MOST_TOKENS

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Who may use the box, and how much of it.")

Tenant = Annotated[str, typer.Argument(help="Name or id of the tenant.")]
Concurrency = Annotated[int | None, typer.Option(min=1, max=MOST_REQUESTS, help="Generations at once.")]
Queue = Annotated[int | None, typer.Option(min=0, max=MOST_REQUESTS, help="Requests that may wait for those.")]
Requests = Annotated[int | None, typer.Option(min=1, max=MOST_REQUESTS, help="Requests a minute.")]
RequestBurst = Annotated[
    int | None, typer.Option(min=1, max=MOST_REQUESTS, help="Requests at once; else those of a minute.")
]
Tokens = Annotated[int | None, typer.Option(min=1, max=MOST_TOKENS, help="Prompt and output tokens a minute.")]
TokenBurst = Annotated[int | None, typer.Option(min=1, max=MOST_TOKENS, help="Tokens at once; else those of a minute.")]
TokensDay = Annotated[int | None, typer.Option(min=1, max=MOST_TOKENS, help="Tokens a calendar day, in UTC.")]
TokensMonth = Annotated[int | None, typer.Option(min=1, max=MOST_TOKENS, help="Tokens a calendar month, in UTC.")]
Context = Annotated[int | None, typer.Option(min=1, max=MOST_TOKENS, help="Prompt and output tokens of one request.")]
Output = Annotated[int | None, typer.Option(min=1, max=MOST_TOKENS, help="Output tokens of one request.")]
Share = Annotated[
    float | None, typer.Option(min=0.01, max=100, help="Of the engines, beside tenants of its priority; else 1.")
]
Models = Annotated[list[str] | None, typer.Option("--model", help="Allow this model only; repeatable.")]
Priority = Annotated[int, typer.Option(min=-100, max=100, help="Lower runs first.")]


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Name of the new tenant.")],
    max_concurrency: Concurrency = None,
    max_queue: Queue = None,
    requests_per_minute: Requests = None,
    request_burst: RequestBurst = None,
    tokens_per_minute: Tokens = None,
    token_burst: TokenBurst = None,
    tokens_per_day: TokensDay = None,
    tokens_per_month: TokensMonth = None,
    max_context_tokens: Context = None,
    max_output_tokens: Output = None,
    share: Share = None,
    model: Models = None,
    priority: Priority = 0,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a tenant; limits that are not given do not bind."""
    from daemon.commands.tenancy import tenancy

    limits = {
        "max_concurrency": max_concurrency,
        "max_queue": max_queue,
        "requests_per_minute": requests_per_minute,
        "request_burst": request_burst,
        "tokens_per_minute": tokens_per_minute,
        "token_burst": token_burst,
        "tokens_per_day": tokens_per_day,
        "tokens_per_month": tokens_per_month,
        "max_context_tokens": max_context_tokens,
        "max_output_tokens": max_output_tokens,
        "share": share,
        "models": model or None,
    }
    with tenancy(settings_from(config, state_dir, run_dir)) as reached:
        made = reached.create_tenant(name, priority, limits)
    _show(made, as_json, f"tenant {made['name']} made; next: bayard keys create --tenant {made['name']}")


@app.command()
def limits(
    tenant: Tenant,
    max_concurrency: Concurrency = None,
    max_queue: Queue = None,
    requests_per_minute: Requests = None,
    request_burst: RequestBurst = None,
    tokens_per_minute: Tokens = None,
    token_burst: TokenBurst = None,
    tokens_per_day: TokensDay = None,
    tokens_per_month: TokensMonth = None,
    max_context_tokens: Context = None,
    max_output_tokens: Output = None,
    share: Share = None,
    model: Models = None,
    priority: Priority = 0,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Replace a tenant's limits as a whole: those that are not given no longer bind."""
    from daemon.commands.tenancy import tenancy

    kept = {
        "max_concurrency": max_concurrency,
        "max_queue": max_queue,
        "requests_per_minute": requests_per_minute,
        "request_burst": request_burst,
        "tokens_per_minute": tokens_per_minute,
        "token_burst": token_burst,
        "tokens_per_day": tokens_per_day,
        "tokens_per_month": tokens_per_month,
        "max_context_tokens": max_context_tokens,
        "max_output_tokens": max_output_tokens,
        "share": share,
        "models": model or None,
    }
    with tenancy(settings_from(config, state_dir, run_dir)) as reached:
        changed = reached.set_limits(tenant, priority, kept)
    _show(changed, as_json, f"tenant {changed['name']}: {_spelled(changed['limits'])}")


@app.command("list")
def list_tenants(
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Every tenant with its limits."""
    from daemon.commands.tenancy import tenancy

    with tenancy(settings_from(config, state_dir, run_dir)) as reached:
        found = reached.tenants()
    if as_json:
        print(json.dumps(found, indent=2))
        return
    if not found:
        print("No tenants. Make one: bayard tenants create NAME")
        return
    width = max(len(item["name"]) for item in found)
    for item in found:
        print(f"{item['name']:<{width}}  {item['state']:<9}  {item['keys']} keys  {_spelled(item['limits'])}")


@app.command()
def change(
    tenant: Tenant,
    name: Annotated[str | None, typer.Option("--name", help="Another name.")] = None,
    priority: Annotated[int | None, typer.Option("--priority", min=-100, max=100, help="Lower runs first.")] = None,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Another name or priority; keys, limits and usage stay with it."""
    from daemon.commands.tenancy import tenancy

    with tenancy(settings_from(config, state_dir, run_dir)) as reached:
        changed = reached.change_tenant(tenant, {"name": name, "priority": priority})
    _show(changed, as_json, f"tenant {changed['name']}, priority {changed['priority']}")


@app.command()
def delete(
    tenant: Tenant,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete a suspended tenant with its keys, stored answers, files and batches; usage and audit stay."""
    from daemon.commands.tenancy import tenancy

    with tenancy(settings_from(config, state_dir, run_dir)) as reached:
        deleted = reached.delete_tenant(tenant)
    print(json.dumps({"deleted": deleted}) if as_json else f"tenant {deleted} is deleted")


@app.command()
def suspend(
    tenant: Tenant,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Refuse every request of the tenant from now on; what runs is finished."""
    _set_suspended(tenant, True, config, state_dir, run_dir, as_json)


@app.command()
def resume(
    tenant: Tenant,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take the tenant's requests again."""
    _set_suspended(tenant, False, config, state_dir, run_dir, as_json)


def _set_suspended(tenant: str, suspended: bool, config: Any, state_dir: Any, run_dir: Any, as_json: bool) -> None:
    from daemon.commands.tenancy import tenancy

    with tenancy(settings_from(config, state_dir, run_dir)) as reached:
        changed = reached.set_suspended(tenant, suspended)
    _show(changed, as_json, f"tenant {changed['name']} is {changed['state']}")


def _spelled(limits: dict[str, Any]) -> str:
    bound = [
        f"{name} {', '.join(value) or 'none' if isinstance(value, list) else f'{value:,}'}"
        for name, value in limits.items()
        if value is not None
    ]
    return "; ".join(bound) or "no limits"


def _show(item: dict[str, Any], as_json: bool, sentence: str) -> None:
    print(json.dumps(item, indent=2) if as_json else sentence)
