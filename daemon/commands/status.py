"""bayard status: what is running, at a glance."""

from __future__ import annotations

import json
import time
from datetime import datetime
from typing import Annotated, Any

import typer

from daemon.commands.options import ConfigOption, JsonOption, RunDirOption, StateDirOption, settings_from

WATCH_PERIOD_S = 2.0

app = typer.Typer(rich_markup_mode=None)


@app.command()
def status(
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
    watch: Annotated[bool, typer.Option("--watch", help="Print again every two seconds until Ctrl-C.")] = False,
) -> None:
    """Print the box's state, its plan, its workers and what is wrong. Exit status 1 if it does not serve."""
    from daemon.commands.client import admin

    settings = settings_from(config, state_dir, run_dir)
    with admin(settings) as client:
        while True:
            box, workers = client.get("status"), client.get("workers")["items"]
            print(json.dumps({"status": box, "workers": workers}, indent=2) if as_json else page(box, workers))
            if not watch:
                break
            print()
            time.sleep(WATCH_PERIOD_S)
    if box["state"] not in ("serving", "starting"):
        raise typer.Exit(1)


def page(box: dict[str, Any], workers: list[dict[str, Any]]) -> str:
    """The plain text. What is unknown is shown as -."""
    as_of = datetime.fromisoformat(box["as_of"])
    lines = [
        f"{box['hostname']}  {box['state'].upper()}  bayard {box['version']}  up {_age(box.get('started_at'), as_of)}",
        f"plan      {box['plan'] or '-'}  ({box['plan_reason']})",
        f"models    {', '.join(box['models']) or '-'}" + _on_demand(box),
        f"requests  {box['requests_running']} running, {box['requests_waiting']} waiting",
        f"http      {box['http'] or '-'}",
        f"grpc      {box['grpc'] or '-'}",
    ]
    lines += [f"!         {reason}" for reason in box["reasons"]]
    lines.append("")
    lines += _worker_lines(workers, as_of) if workers else [no_worker(box)]
    return "\n".join(lines)


def no_worker(box: dict[str, Any]) -> str:
    """Why there is none, and what would bring one."""
    if box["on_demand"]:
        return f"No worker runs: plan {box['plan']} loads {', '.join(box['on_demand'])} when asked for."
    if box["plan"]:
        return f"No worker runs for plan {box['plan']}: `bayard plan show {box['plan']}` tells what it loads."
    return "No worker is wanted: `bayard models import PATH` brings one."


def _on_demand(box: dict[str, Any]) -> str:
    return f"; when asked for: {', '.join(box['on_demand'])}" if box["on_demand"] else ""


def _worker_lines(workers: list[dict[str, Any]], as_of: datetime) -> list[str]:
    rows = [("worker", "model", "state", "for", "device", "running", "restarts", "memory", "why")]
    for worker in workers:
        rows.append(
            (
                worker["id"],
                worker["model"],
                worker["state"],
                _age(worker["since"], as_of),
                worker["device"] or "-",
                _number(worker["requests_running"]),
                str(worker["restarts"]),
                _gib(worker["memory_bytes"]),
                _loading(worker) or worker["reason"],
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    return [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]) for row in rows
    ]


def _loading(worker: dict[str, Any]) -> str:
    total = worker["load_total_bytes"]
    if worker["state"] != "starting" or not total:
        return ""
    return f"{worker['load_stage']} {100 * worker['load_done_bytes'] / total:.0f} % of {total / 2**30:.2f} GiB"


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)


def _gib(value: int | None) -> str:
    return "-" if value is None else f"{value / 2**30:.2f} GiB"


def _age(since: str | None, as_of: datetime) -> str:
    if since is None:
        return "-"
    seconds = max(0, int((as_of - datetime.fromisoformat(since)).total_seconds()))
    days, rest = divmod(seconds, 86_400)
    hours, rest = divmod(rest, 3_600)
    minutes, seconds = divmod(rest, 60)
    if days:
        return f"{days} d {hours:02} h"
    if hours:
        return f"{hours} h {minutes:02} m"
    return f"{minutes} m {seconds:02} s" if minutes else f"{seconds} s"
