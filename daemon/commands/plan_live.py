"""bayard plan adapt, on-demand, rollback: what follows the load, and the way back."""

from __future__ import annotations

import json
from typing import Annotated, Any
from urllib.parse import quote

import typer

from daemon.commands.client import admin, offline_or_admin
from daemon.commands.options import ConfigOption, JsonOption, RunDirOption, StateDirOption, settings_from

PlanArgument = Annotated[str, typer.Argument(metavar="PLAN", help="Name of a saved plan.")]


def adapt(
    name: PlanArgument,
    off: Annotated[bool, typer.Option("--off", help="Leave the knobs where the plan has them.")] = False,
    least: Annotated[int | None, typer.Option("--least", min=1, help="Streams at the latency end.")] = None,
    most: Annotated[int | None, typer.Option("--most", min=1, help="Streams at the throughput end.")] = None,
    dwell: Annotated[
        float | None, typer.Option("--dwell", min=1, max=3600, help="Seconds before a move back to fewer streams.")
    ] = None,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let measured load move the plan's streams and chunks, between the latency and the throughput end."""
    if off and (least, most, dwell) != (None, None, None):
        raise typer.BadParameter("--off takes no --least, --most or --dwell")
    body = {"on": not off, "least_streams": least, "most_streams": most, "dwell_s": dwell}
    with offline_or_admin(settings_from(config, state_dir, run_dir)) as reach:
        if reach.admin is not None:
            item = reach.admin.put(f"plans/{quote(name, safe='')}/adaptive", body)["item"]
        else:
            from daemon.commands.plan import plan_item
            from daemon.strategy.adapting import adapt as make_adaptive

            parts = reach.parts()
            saved = make_adaptive(
                parts.desk, parts.plans, name, on=not off, least_streams=least, most_streams=most, dwell_s=dwell
            )
            item = plan_item(saved, None)
            reach.record("plan.adapt", f"plan:{name}", body)
    if as_json:
        print(json.dumps(item, indent=2))
        return
    for model in item["models"]:
        bounds = model["bounds"]
        if bounds is None:
            print(f"plan {name}: load moves no knobs of {model['model']}")
            continue
        few, many = bounds["latency"], bounds["throughput"]
        print(
            f"plan {name}: load moves {model['model']} between {few['max_running']:,} and {many['max_running']:,} "
            f"streams, {few['prefill_chunk']:,} and {many['prefill_chunk']:,} prompt tokens a step"
        )


def on_demand(
    name: PlanArgument,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="An imported model.")],
    keep_alive: Annotated[
        str | None,
        typer.Option("--keep-alive", metavar="TIME", help="Unused for so long it is put away: 90s, 2h; else 10m."),
    ] = None,
    pin: Annotated[bool, typer.Option("--pin", help="Once loaded it stays.")] = False,
    off: Annotated[bool, typer.Option("--off", help="Load it always.")] = False,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Load a model of a plan when it is asked for, and put it away when it is not."""
    from daemon.commands.durations import seconds_of

    if off and (pin or keep_alive is not None):
        raise typer.BadParameter("--off takes no --pin or --keep-alive")
    keep_alive = keep_alive or "10m"
    keep_alive_s = seconds_of(keep_alive)
    body = {"model": model, "on": not off, "keep_alive_s": keep_alive_s, "pinned": pin}
    with offline_or_admin(settings_from(config, state_dir, run_dir)) as reach:
        if reach.admin is not None:
            item = reach.admin.put(f"plans/{quote(name, safe='')}/on-demand", body)["item"]
        else:
            from daemon.commands.plan import plan_item
            from daemon.strategy.demanding import load_always, load_on_demand

            parts = reach.parts()
            if off:
                saved = load_always(parts.desk, parts.plans, name, model)
            else:
                saved = load_on_demand(parts.desk, parts.plans, name, model, keep_alive_s, pinned=pin)
            item = plan_item(saved, None)
            reach.record("plan.on_demand", f"plan:{name}", body)
    if as_json:
        print(json.dumps(item, indent=2))
    elif off:
        print(f"plan {name}: {model} is always loaded")
    else:
        stays = "once loaded it stays" if pin else f"unused for {keep_alive} it is put away"
        print(f"plan {name}: {model} is loaded when it is asked for; {stays}")


def rollback(
    reason: Annotated[str, typer.Option(help="Why, for the event log.")] = "",
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put the plan in force that was so before the present one. The service must run."""
    with admin(settings_from(config, state_dir, run_dir)) as client:
        told = client.post("plans/rollback", {"reason": reason})
    text = f"plan {told['plan']} is in force: {told['reason']}{following(told)}"
    print(json.dumps(told, indent=2) if as_json else text)


def following(told: dict[str, Any]) -> str:
    """What is still to be done for a plan that is in force by now; empty where its workers are as it wants them."""
    if told.get("problem"):
        return f"\nits workers do not follow: {told['problem']}"
    if told.get("converged", True):
        return ""
    return "\nits workers follow once running streams have ended: `bayard status` shows how far they are"
