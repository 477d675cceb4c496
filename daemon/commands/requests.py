"""bayard requests: those that are here now; cancel one."""

from __future__ import annotations

import json
from typing import Annotated
from urllib.parse import quote

import typer

from daemon.commands.client import admin
from daemon.commands.options import ConfigOption, JsonOption, RunDirOption, StateDirOption, settings_from

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="The requests that are here now.")


@app.command("list")
def list_(
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """State, tenant, tokens and age of each, oldest first; never its text."""
    with admin(settings_from(config, state_dir, run_dir)) as client:
        answer = client.get("requests")
    if as_json:
        print(json.dumps(answer, indent=2))
        return
    for item in answer["items"]:
        print(
            f"{item['id']:<34} {item['state']:<9} {item['tenant']:<16} {item['model']:<24} "
            f"{item['output_tokens']:>7,} tokens  {item['age_s']:.1f} s"
        )
    if answer["total"] > len(answer["items"]):
        print(f"... {answer['total'] - len(answer['items'])} more")
    if not answer["total"]:
        print("no request is here now")


@app.command()
def cancel(
    request: Annotated[str, typer.Argument(help="Its id, as `bayard requests list` shows it.")],
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """End one; its client is told so."""
    with admin(settings_from(config, state_dir, run_dir)) as client:
        item = client.post(f"requests/{quote(request, safe='')}/cancel")["item"]
    print(json.dumps(item, indent=2) if as_json else f"{item['id']} of {item['tenant']} is cancelled")
