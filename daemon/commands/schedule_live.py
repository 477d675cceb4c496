"""bayard schedule hold, override, preview: above the rules, and what a rule would change. The service must run."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Annotated, Any

import typer

from daemon.commands.client import admin
from daemon.commands.options import ConfigOption, JsonOption, RunDirOption, StateDirOption, settings_from

Time = Annotated[str | None, typer.Option("--for", metavar="TIME", help="So long, as 10h; else until released.")]
Why = Annotated[str, typer.Option("--reason", help="Why, for the event log and the audit.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what it would do, and do nothing.")]


def hold(
    for_: Time = None,
    reason: Why = "",
    dry_run: DryRun = False,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Keep the plan that is in force, whatever the rules say, until `bayard schedule release`."""
    body = {"reason": reason, "for_s": _seconds(for_)}
    with admin(settings_from(config, state_dir, run_dir)) as client:
        told = client.post("schedule/hold", body, dry_run="true" if dry_run else None)
    _show(told, as_json, dry_run, lambda: f"plan {told['plan']} is held{until(told)}: {told['reason']}")


def override(
    plan: Annotated[str, typer.Argument(metavar="[PLAN]", help="Name of a saved plan.")] = "",
    for_: Time = None,
    reason: Why = "",
    clear: Annotated[bool, typer.Option("--clear", help="End the one that there is instead.")] = False,
    dry_run: DryRun = False,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put a plan above the rules, for a time or until it is cleared."""
    if clear == bool(plan):
        raise typer.BadParameter("name a plan, or --clear the override that there is")
    if clear and (for_ is not None or reason or dry_run):
        raise typer.BadParameter("--clear takes no --for, --reason or --dry-run")
    if clear:
        with admin(settings_from(config, state_dir, run_dir)) as client:
            told = client.delete("schedule/overrides/current")
        _show(told, as_json, False, lambda: f"plan {told['plan'] or 'none'} is in force: {told['reason']}")
        return
    body = {"plan": plan, "reason": reason, "for_s": _seconds(for_)}
    with admin(settings_from(config, state_dir, run_dir)) as client:
        told = client.post("schedule/overrides", body, dry_run="true" if dry_run else None)
    _show(told, as_json, dry_run, lambda: f"plan {plan} until {told['item']['ends_at'] or 'it is released'}")


def preview(
    name: Annotated[str, typer.Argument(metavar="RULE", help="Name of a rule, new or there already.")],
    plan: Annotated[str, typer.Option("--plan", help="The plan that it puts in force.")],
    cron: Annotated[str, typer.Option("--cron", help="Start: minute hour day month weekday.")],
    for_: Annotated[str, typer.Option("--for", metavar="TIME", help="How long from each start, as 10h.")],
    timezone: Annotated[str, typer.Option("--timezone", help="IANA zone; else the setting's.")] = "",
    day: Annotated[str | None, typer.Option("--date", metavar="YYYY-MM-DD", help="Another day than today.")] = None,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """What a rule would make of a day; nothing is changed."""
    rule = {"name": name, "cron": cron, "duration_s": _seconds(for_), "plan": plan, "timezone": timezone}
    with admin(settings_from(config, state_dir, run_dir)) as client:
        told = client.post("schedule/preview", {"rule": rule, "day": day})
    if as_json:
        print(json.dumps(told, indent=2))
        return
    for title in ("before", "after"):
        print(f"{title}, {told['day']} ({told['timezone']})")
        for item in told[title]:
            print(
                f"  {item['starts_at'][11:16]}-{item['ends_at'][11:16]}  {item['plan'] or 'none':<20} {item['reason']}"
            )
    if told["problem"]:
        print(f"it would be refused: {told['problem']}")


def until(told: dict[str, Any]) -> str:
    """When what is in force ends, in local time; nothing where no end is near."""
    if told["until_at"] is None:
        return ""
    return f" until {datetime.fromisoformat(told['until_at']).astimezone():%Y-%m-%d %H:%M %Z}"


def _seconds(text: str | None) -> int | None:
    from daemon.commands.durations import seconds_of

    return None if text is None else seconds_of(text)


def _show(told: dict[str, Any], as_json: bool, dry_run: bool, sentence: Any) -> None:
    if as_json:
        print(json.dumps(told, indent=2))
    else:
        print("\n".join(told["consequences"]) if dry_run else sentence())
