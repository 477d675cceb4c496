"""bayard plan adapt PLAN, bayard plan rollback: knobs that follow the load, and the way back."""

from __future__ import annotations

import json
from typing import Annotated

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
    body = {"on": not off, "least_streams": least, "most_streams": most, "dwell_s": dwell}
    with offline_or_admin(settings_from(config, state_dir, run_dir)) as reach:
        if reach.admin is not None:
            item = reach.admin.put(f"plans/{name}/adaptive", body)["item"]
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
    print(json.dumps(told, indent=2) if as_json else f"plan {told['plan']} is in force: {told['reason']}")
