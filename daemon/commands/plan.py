"""bayard plan MODEL|PATH: what it would need and do here; and the saved plans."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer
from typer.core import TyperGroup

from daemon.commands.client import Reach, offline_or_admin
from daemon.commands.options import ConfigOption, JsonOption, RunDirOption, StateDirOption, settings_from
from daemon.commands.plan_live import adapt, following, on_demand, rollback
from daemon.planning.kv_bytes import KvPrecision
from daemon.planning.strategy import Strategy
from daemon.settings import Settings
from engine.spec.precision import WeightPrecision

_HELP = "What a model would need here and how fast it would be; saved plans."
_PREVIEW = "preview"


class PlanGroup(TyperGroup):
    """`bayard plan MODEL` without a sub-command means `bayard plan preview MODEL`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args = [_PREVIEW, *args]
        parsed: list[str] = super().parse_args(ctx, args)
        return parsed


app = typer.Typer(cls=PlanGroup, no_args_is_help=True, rich_markup_mode=None, help=_HELP)
app.command()(adapt)
app.command("on-demand")(on_demand)
app.command()(rollback)

StrategyOption = Annotated[Strategy, typer.Option("--strategy", help="What matters most.")]
ContextOption = Annotated[
    int | None, typer.Option("--context", min=1, help="Tokens that one sequence must be allowed.")
]
UsersOption = Annotated[int | None, typer.Option("--users", min=1, help="Streams that must run at once.")]
WeightsOption = Annotated[
    WeightPrecision | None, typer.Option("--weights", help="What matrices are rounded to at load; else as stored.")
]
KvOption = Annotated[
    KvPrecision | None, typer.Option("--kv", help="What the KV cache is kept in; else as exact as activations.")
]
PlanArgument = Annotated[str, typer.Argument(metavar="PLAN", help="Name of a saved plan.")]


@app.callback()
def group() -> None:
    """What a model would need here and how fast it would be; saved plans.

    bayard plan MODEL|PATH answers before anything is loaded, for an imported model or files not yet imported.
    """


@app.command(_PREVIEW)
def preview(
    targets: Annotated[
        list[str],
        typer.Argument(metavar="MODEL|PATH...", help="Imported models, files or folders; several run together."),
    ],
    strategy: StrategyOption = Strategy.LATENCY,
    context: ContextOption = None,
    users: UsersOption = None,
    weights: WeightsOption = None,
    kv: KvOption = None,
    machine: Annotated[
        Path | None,
        typer.Option("--machine", metavar="HW.JSON", help="Plan for the machine of a saved `bayard hw --json`."),
    ] = None,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Yes, or why not: candidates, the chosen profile with its reasons, memory. Exit status 1 for no."""
    from daemon.commands.preview import answers_of, machine_of
    from daemon.planning.answer_json import answer_to_json
    from daemon.planning.plan import Request
    from daemon.planning.render import answer_text

    described = None if machine is None else machine_of(machine)
    request = Request(strategy, context, users, kv, weights=weights)
    answers = answers_of(targets, request, described, settings_from(config, state_dir, run_dir))
    told = [answer_to_json(answer) for answer in answers]
    if as_json:
        print(json.dumps(told[0] if len(told) == 1 else {"answers": told}, indent=2))
    else:
        print("\n\n".join(answer_text(answer) for answer in answers))
    if not all(answer.fits for answer in answers):
        raise typer.Exit(1)


@app.command()
def save(
    name: PlanArgument,
    models: Annotated[list[str], typer.Argument(metavar="MODEL...", help="Imported models that run together.")],
    strategy: StrategyOption = Strategy.LATENCY,
    context: ContextOption = None,
    users: UsersOption = None,
    weights: WeightsOption = None,
    kv: KvOption = None,
    even: Annotated[
        bool, typer.Option("--replace-automatic", help="Even in the place of a plan that imports keep up to date.")
    ] = False,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Plan models together and keep the outcome under a name."""
    body = {"strategy": strategy.value, "models": models, "context_tokens": context, "users": users}
    body |= {"weights": weights, "kv_dtype": kv, "replace_automatic": even}
    with offline_or_admin(settings_from(config, state_dir, run_dir)) as reach:
        if reach.admin is not None:
            item = reach.admin.put(f"plans/{quote(name, safe='')}", body)["item"]
        else:
            item = plan_item(reach.parts().desk.save(name, strategy, models, context, users, weights, kv, even), None)
            reach.record("plan.save", f"plan:{name}", body)
    print(json.dumps(item, indent=2) if as_json else f"saved {_line(item)}")


@app.command()
def activate(
    name: PlanArgument,
    for_: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="How long, as 90m, 2h or 1d; else until released.")
    ] = None,
    reason: Annotated[str, typer.Option(help="Why, for the event log.")] = "",
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a plan now, above the schedule; where there are no rules it becomes the default."""
    from daemon.commands.durations import seconds_of

    for_s = None if for_ is None else seconds_of(for_)
    with offline_or_admin(settings_from(config, state_dir, run_dir)) as reach:
        if reach.admin is not None:
            told = reach.admin.post(f"plans/{quote(name, safe='')}/activate", {"for_s": for_s, "reason": reason})
        else:
            told = _activate_offline(reach, name, for_s, reason)
    if as_json:
        print(json.dumps(told, indent=2))
        return
    until = "" if told["until_at"] is None else f" until {told['until_at']}"
    print(f"plan {told['plan']} is in force{until}: {told['reason']}{following(told)}")


@app.command("list")
def list_(
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Every saved plan; the one in force is marked."""
    from daemon.planning.render import table
    from daemon.planning.units import human_bytes

    items = _items(settings_from(config, state_dir, run_dir))
    if as_json:
        print(json.dumps(items, indent=2))
        return
    if not items:
        print("no plan is saved yet: importing a model makes two")
        return
    rows = [
        (
            "*" if item["active"] else "",
            item["name"],
            item["strategy"],
            item["origin"],
            ", ".join(model["model"] for model in item["models"]),
            human_bytes(sum(model["memory_bytes"] for model in item["models"])),
        )
        for item in items
    ]
    print("\n".join(table(rows, ("", "plan", "strategy", "made by", "models", "memory"))))


@app.command()
def show(
    name: PlanArgument,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """One plan with the reason for each choice."""
    from daemon.planning.units import human_bytes, human_rate, human_tokens

    with offline_or_admin(settings_from(config, state_dir, run_dir)) as reach:
        if reach.admin is not None:
            item = reach.admin.get(f"plans/{quote(name, safe='')}")["item"]
        else:
            parts = reach.parts()
            item = plan_item(parts.plans.get(name), _in_force(parts))
    if as_json:
        print(json.dumps(item, indent=2))
        return
    print(_line(item) + (", in force" if item["active"] else ""))
    for model in item["models"]:
        print(
            f"  {model['model']} on {model['device']}: {human_bytes(model['memory_bytes'])}, "
            f"context {human_tokens(model['context_tokens'])}, {human_rate(model['decode_tok_s'])} tok/s alone, "
            f"{human_rate(model['batch_tok_s'])} together"
        )
        for reason in model["reasons"]:
            print(f"    {reason}")


@app.command()
def diff(
    old: PlanArgument,
    new: PlanArgument,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """What going from one plan to another changes."""
    from daemon.planning.render import table

    with offline_or_admin(settings_from(config, state_dir, run_dir)) as reach:
        if reach.admin is not None:
            items = reach.admin.get(f"plans/{quote(old, safe='')}/diff", to=new)["items"]
        else:
            from daemon.strategy.plans import diff as difference

            plans = reach.parts().plans
            keys = ("model", "what", "old", "new")
            items = [dict(zip(keys, row, strict=True)) for row in difference(plans.get(old), plans.get(new))]
    if as_json:
        print(json.dumps(items, indent=2))
    elif not items:
        print(f"plans {old} and {new} would run the same")
    else:
        print(
            "\n".join(table([[i["model"], i["what"], i["old"], i["new"]] for i in items], ("model", "what", old, new)))
        )


@app.command()
def delete(
    name: PlanArgument,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Forget a plan; refused while a rule, an override or the default names it."""
    with offline_or_admin(settings_from(config, state_dir, run_dir)) as reach:
        if reach.admin is not None:
            reach.admin.delete(f"plans/{quote(name, safe='')}")
        else:
            reach.parts().plans.delete(name)
            reach.record("plan.delete", f"plan:{name}")
    print(json.dumps({"deleted": name}) if as_json else f"deleted plan {name}")


def _items(settings: Settings) -> list[dict[str, Any]]:
    with offline_or_admin(settings) as reach:
        if reach.admin is not None:
            items: list[dict[str, Any]] = reach.admin.get("plans")["items"]
            return items
        parts = reach.parts()
        active = _in_force(parts)
        return [plan_item(plan, active) for plan in parts.plans.all()]


def plan_item(plan: Any, active: str | None) -> dict[str, Any]:
    """A plan as the admin API shows it."""
    from daemon.planning.answer_json import profile_item

    return {
        "name": plan.name,
        "strategy": plan.strategy.value,
        "origin": plan.origin,
        "active": plan.name == active,
        "models": [profile_item(profile) for profile in plan.profiles],
        "notes": plan.notes,
        "created_at": plan.created_at.isoformat(),
        "updated_at": plan.updated_at.isoformat(),
    }


def _in_force(parts: Any) -> str | None:
    from daemon.store.base import utc_now
    from daemon.strategy.schedule import plan_at

    decision = plan_at(parts.rules.all(), utc_now(), parts.plans.default(), parts.rules.override(), look_ahead=False)
    return decision.plan


def _activate_offline(reach: Reach, name: str, for_s: float | None, reason: str) -> dict[str, Any]:
    import getpass

    from daemon.store.base import utc_now
    from daemon.strategy.activation import activate as put_in_force
    from daemon.strategy.schedule import plan_at

    parts = reach.parts()
    put_in_force(parts.plans, parts.rules, name, for_s, getpass.getuser(), reason)
    reach.record("plan.activate", f"plan:{name}", {"for_s": for_s, "reason": reason})
    decision = plan_at(parts.rules.all(), utc_now(), parts.plans.default(), parts.rules.override())
    until: datetime | None = decision.until_at
    return {"plan": decision.plan, "until_at": None if until is None else until.isoformat(), "reason": decision.reason}


def _line(item: dict[str, Any]) -> str:
    models = ", ".join(model["model"] for model in item["models"])
    return f"plan {item['name']} ({item['strategy']}, made by {item['origin']}): {models}"
