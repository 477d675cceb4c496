"""bayard attention: what needs a person, and that one has seen it."""

from __future__ import annotations

import json
from typing import Annotated
from urllib.parse import quote

import typer

from daemon.commands.client import admin
from daemon.commands.options import ConfigOption, JsonOption, RunDirOption, StateDirOption, settings_from

app = typer.Typer(rich_markup_mode=None)


@app.command()
def attention(
    ack: Annotated[str | None, typer.Option("--ack", metavar="ID", help="Say that it was seen.")] = None,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """List what needs a person, failures first, each with its fix. Exit status: 0 nothing or warnings, 1 failures."""
    with admin(settings_from(config, state_dir, run_dir)) as client:
        if ack is not None:
            items = [client.post(f"attention/{quote(ack, safe='')}/ack")["item"]]
        else:
            items = client.get("attention")["items"]
    if as_json:
        print(json.dumps(items, indent=2))
    elif not items:
        print("nothing needs attention")
    else:
        for item in items:
            seen = f"  (seen by {item['acknowledged_by']})" if item["acknowledged_by"] else ""
            print(f"{item['severity'].upper():<4}  {item['since'][:16]}  {item['id']}  {item['text']}{seen}")
            if item["fix"]:
                print(f"      fix: {item['fix']}")
    raise typer.Exit(int(ack is None and any(item["severity"] == "fail" for item in items)))
