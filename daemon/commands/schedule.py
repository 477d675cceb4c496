"""bayard schedule: which plan runs when."""

from __future__ import annotations

import json
from datetime import date, datetime
from typing import Annotated, Any
from urllib.parse import quote
from zoneinfo import ZoneInfo

import typer

from daemon.commands.client import offline_or_admin
from daemon.commands.options import ConfigOption, JsonOption, RunDirOption, StateDirOption, settings_from
from daemon.commands.schedule_live import hold, override, preview, until

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Which plan runs when.")

ExceptOption = Annotated[
    list[str] | None, typer.Option("--except", metavar="YYYY-MM-DD", help="A date without it; may be repeated.")
]
RuleArgument = Annotated[str, typer.Argument(metavar="RULE", help="Name of the rule.")]


@app.callback()
def group() -> None:
    """Which plan runs when."""


@app.command()
def add(
    name: RuleArgument,
    plan: Annotated[str, typer.Option("--plan", help="The plan that it puts in force.")],
    cron: Annotated[str, typer.Option("--cron", help="Start: minute hour day month weekday, as '0 8 * * mon-fri'.")],
    for_: Annotated[str, typer.Option("--for", metavar="TIME", help="How long from each start, as 10h.")],
    timezone: Annotated[str, typer.Option("--timezone", help="IANA zone; else the setting's.")] = "",
    except_: ExceptOption = None,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add a rule; one that never starts, or starts together with another plan's, is refused."""
    from daemon.commands.durations import seconds_of

    duration_s, dates = seconds_of(for_), [_date(day) for day in except_ or ()]
    body = {"name": name, "cron": cron, "duration_s": duration_s, "plan": plan, "timezone": timezone}
    body["except_dates"] = [day.isoformat() for day in dates]
    with offline_or_admin(settings_from(config, state_dir, run_dir)) as reach:
        if reach.admin is not None:
            item = reach.admin.post("schedule/rules", body)["item"]
        else:
            item = rule_item(reach.parts().rules.add(name, cron, duration_s, plan, timezone, dates))
            reach.record("schedule.add", f"rule:{name}", body)
    print(json.dumps(item, indent=2) if as_json else f"added rule {_line(item)}")


@app.command("list")
def list_(
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Every rule."""
    with offline_or_admin(settings_from(config, state_dir, run_dir)) as reach:
        if reach.admin is not None:
            items = reach.admin.get("schedule/rules")["items"]
        else:
            items = [rule_item(rule) for rule in reach.parts().rules.all()]
    if as_json:
        print(json.dumps(items, indent=2))
        return
    print("\n".join(_line(item) for item in items) if items else "no rule: the default plan runs all day")


@app.command()
def remove(
    name: RuleArgument,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove a rule; what it held in force ends at once."""
    with offline_or_admin(settings_from(config, state_dir, run_dir)) as reach:
        if reach.admin is not None:
            reach.admin.delete(f"schedule/rules/{quote(name, safe='')}")
        else:
            reach.parts().rules.remove(name)
            reach.record("schedule.remove", f"rule:{name}")
    print(json.dumps({"deleted": name}) if as_json else f"removed rule {name}")


@app.command()
def change(
    name: RuleArgument,
    plan: Annotated[str | None, typer.Option("--plan", help="The plan that it puts in force.")] = None,
    cron: Annotated[str | None, typer.Option("--cron", help="Start: minute hour day month weekday.")] = None,
    for_: Annotated[str | None, typer.Option("--for", metavar="TIME", help="How long from each start, as 10h.")] = None,
    timezone: Annotated[str | None, typer.Option("--timezone", help="IANA zone.")] = None,
    except_: ExceptOption = None,
    every_date: Annotated[bool, typer.Option("--no-exceptions", help="Forget the dates without it.")] = False,
    on: Annotated[bool, typer.Option("--on", help="Let it hold again.")] = False,
    off: Annotated[bool, typer.Option("--off", help="Let it hold no more, and keep it.")] = False,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Switch a rule on or off, or give it another start, length, plan, zone or other dates without it."""
    from daemon.commands.durations import seconds_of

    if on and off:
        raise typer.BadParameter("--on and --off exclude each other")
    if every_date and except_:
        raise typer.BadParameter("--except and --no-exceptions exclude each other; --except alone replaces the dates")
    asked = {
        "enabled": on if on or off else None, "cron": cron, "plan": plan, "timezone": timezone,
        "duration_s": None if for_ is None else seconds_of(for_),
    }  # fmt: skip
    body: dict[str, Any] = {key: value for key, value in asked.items() if value is not None}
    if except_ is not None or every_date:
        body["except_dates"] = [_date(day).isoformat() for day in except_ or ()]
    with offline_or_admin(settings_from(config, state_dir, run_dir)) as reach:
        if reach.admin is not None:
            item = reach.admin.patch(f"schedule/rules/{quote(name, safe='')}", body)["item"]
        else:
            dates = {"except_dates": [_date(day) for day in except_ or ()]} if "except_dates" in body else {}
            item = rule_item(reach.parts().rules.change(name, **(body | dates)))
            reach.record("schedule.change", f"rule:{name}", body)
    print(json.dumps(item, indent=2) if as_json else f"rule {_line(item)}")


app.command()(hold)
app.command()(override)
app.command()(preview)


@app.command()
def release(
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """End an operator's choice (`bayard plan activate`) and follow the rules again."""
    import getpass

    with offline_or_admin(settings_from(config, state_dir, run_dir)) as reach:
        if reach.admin is not None:
            told = reach.admin.post("schedule/release")
        else:
            parts = reach.parts()
            parts.rules.release(getpass.getuser())
            reach.record("schedule.release", "schedule")
            told = _now(parts)
    print(json.dumps(told, indent=2) if as_json else f"plan {told['plan'] or 'none'} is in force: {told['reason']}")


@app.command()
def show(
    day: Annotated[str | None, typer.Option("--date", metavar="YYYY-MM-DD", help="Another day than today.")] = None,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """What is in force now, and the plans of a day."""
    wanted = None if day is None else _date(day)
    with offline_or_admin(settings_from(config, state_dir, run_dir)) as reach:
        if reach.admin is not None:
            now = reach.admin.get("schedule")
            told = reach.admin.get("schedule/timeline", date=None if wanted is None else wanted.isoformat())
        else:
            parts = reach.parts()
            now = _now(parts)
            told = _timeline(parts, wanted)
    if as_json:
        print(json.dumps({"now": now, "timeline": told}, indent=2))
        return
    print(f"now: plan {now['plan'] or 'none'}{until(now)}: {now['reason']}")
    print(f"{told['date']} ({told['timezone']})")
    zone = ZoneInfo(told["timezone"])
    for item in told["items"]:
        begins, ends = (datetime.fromisoformat(item[key]).astimezone(zone) for key in ("starts_at", "ends_at"))
        end = "24:00" if ends.date() > begins.date() and f"{ends:%H:%M}" == "00:00" else f"{ends:%H:%M}"
        print(f"  {begins:%H:%M}-{end}  {item['plan'] or 'none':<20} {item['reason']}")


def rule_item(rule: Any) -> dict[str, Any]:
    """A rule as the admin API shows it."""
    keys = ("name", "cron", "duration_s", "plan", "timezone", "enabled")
    return {**{key: getattr(rule, key) for key in keys}, "except_dates": [d.isoformat() for d in rule.except_dates]}


def _line(item: dict[str, Any]) -> str:
    hours, rest = divmod(item["duration_s"], 3600)
    length = f"{hours} h" * bool(hours) + (f" {rest // 60} min" if rest else "")
    off = "" if item["enabled"] else "  (off)"
    without = f", not on {', '.join(item['except_dates'])}" if item["except_dates"] else ""
    plan, start = item["plan"], f"{item['cron']} ({item['timezone']})"
    return f"{item['name']}: plan {plan} at {start} for {length.strip()}{without}{off}"


def _date(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is no date; write it as 2026-03-29") from error


def _now(parts: Any) -> dict[str, Any]:
    from daemon.store.base import utc_now
    from daemon.strategy.schedule import plan_at

    decision = plan_at(parts.rules.all(), utc_now(), parts.plans.default(), parts.rules.override())
    ends = None if decision.until_at is None else decision.until_at.isoformat()
    return {"plan": decision.plan, "until_at": ends, "reason": decision.reason, "rule": decision.rule}


def _timeline(parts: Any, wanted: date | None) -> dict[str, Any]:
    from daemon.store.base import utc_now
    from daemon.strategy.schedule import day_of

    zone = ZoneInfo(parts.rules.timezone)
    day = wanted or utc_now().astimezone(zone).date()
    segments = day_of(parts.rules.all(), day, zone, parts.plans.default(), parts.rules.override())
    items = [
        {"plan": d.plan, "starts_at": b.isoformat(), "ends_at": e.isoformat(), "reason": d.reason, "rule": d.rule}
        for b, e, d in segments
    ]
    return {"date": day.isoformat(), "timezone": parts.rules.timezone, "items": items}
