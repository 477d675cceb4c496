"""bayard hw: the hardware that was found, asked afresh on this machine; the daemon need not run."""

from __future__ import annotations

import json
import stat
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from daemon.commands.client import admin
from daemon.commands.options import ConfigOption, JsonOption, RunDirOption, StateDirOption, settings_from
from engine.errors import ConfigError
from engine.spec.place import mode_at

if TYPE_CHECKING:
    from daemon.settings import Settings
    from hwdetect.machine import Machine

WATCH_PERIOD_S = 5.0

app = typer.Typer(rich_markup_mode=None)


@app.command()
def hw(
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
    watch: Annotated[bool, typer.Option("--watch", help="Go on looking and print what changes, until Ctrl-C.")] = False,
    links: Annotated[bool, typer.Option("--links", help="Also measure how fast memory is copied.")] = False,
    root: Annotated[
        Path, typer.Option("--root", help="Describe a recorded machine's files instead.", metavar="DIR")
    ] = Path("/"),
    rescan: Annotated[
        bool, typer.Option("--rescan", help="Let the running daemon look again, and print what it finds.")
    ] = False,
    drain: Annotated[
        str | None,
        typer.Option("--drain", metavar="ID", help="Put an accelerator's workers to sleep, and let none start."),
    ] = None,
    undrain: Annotated[
        str | None, typer.Option("--undrain", metavar="ID", help="Put a drained accelerator back into use.")
    ] = None,
    run_dir: RunDirOption = None,
) -> None:
    """Print this machine: processors, memory and every accelerator, with the reason where one cannot be used."""
    from hwdetect.detect import detect
    from hwdetect.facts import encode
    from hwdetect.render import table
    from hwdetect.torch_view import measure_links

    if drain is not None or undrain is not None:
        _use(settings_from(config, state_dir, run_dir), drain, undrain, as_json)
        return
    if rescan:
        _rescan(settings_from(config, state_dir, run_dir), as_json)
        return
    if not stat.S_ISDIR(mode_at(root) or 0):
        raise ConfigError(
            f"{str(root)[:300]} is not a folder.", "Give the folder that holds the recorded proc and sys folders."
        )
    live = root == Path("/")
    folder = settings_from(config, state_dir).state_dir if live else None
    machine = detect(root, state_dir=folder)
    view = measure_links() if links and live else None
    if as_json:
        described = json.loads(machine.to_json())
        if view is not None:
            described["link_rates"] = encode(view.rates)
        print(json.dumps(described, ensure_ascii=False, indent=None if watch else 2), flush=True)
    else:
        print(table(machine), end="", flush=True)
        for rate in view.rates if view is not None else ():
            ends = [f"device {end}" if end is not None else "host" for end in (rate.source, rate.target)]
            print(f"Copy      {ends[0]} to {ends[1]}: {rate.bytes_per_s / 1e9:.1f} GB/s")
        if links and (view is None or view.problem):
            print(f"Copy      not measured: {view.problem if view is not None else 'a recorded machine has no links'}")
    while watch:
        machine = _wait_for_change(root, folder, machine, as_json)


def _use(settings: Settings, drain: str | None, undrain: str | None, as_json: bool) -> None:
    with admin(settings) as client:
        for name, action in ((drain, "drain"), (undrain, "undrain")):
            if name is not None:
                item = client.post(f"accelerators/{quote(name, safe='')}/{action}")["item"]
    if as_json:
        print(json.dumps(item, indent=2))
    else:
        print(f"{item['id']} is {item['drained'] or 'in use'}; workers there: {', '.join(item['workers']) or 'none'}")


def _rescan(settings: Settings, as_json: bool) -> None:
    with admin(settings) as client:
        items = client.post("accelerators/rescan")["items"]
    if as_json:
        print(json.dumps(items, indent=2))
        return
    for item in items:
        print(f"{item['id']:<12} {item['state']:<12} {item['name'] or '-'}  {item['reason']}".rstrip())
    if not items:
        print("no accelerator was found")


def _wait_for_change(root: Path, folder: Path | None, machine: Machine, as_json: bool) -> Machine:
    """Look again after a while and print what differs; returns what is there now."""
    from hwdetect.changes import changes
    from hwdetect.detect import detect
    from hwdetect.facts import encode

    time.sleep(WATCH_PERIOD_S)
    now = detect(root, state_dir=folder)
    for change in changes(machine, now):
        if as_json:
            print(json.dumps({**encode(change), "at": now.as_of.isoformat()}, ensure_ascii=False), flush=True)
        else:
            at = datetime.now().astimezone().strftime("%H:%M:%S")
            why = f" ({change.reason})" if change.reason else ""
            print(f"{at}  {change.kind}  {change.subject}: {change.before} -> {change.after}{why}", flush=True)
    return now
