"""bayard usage: what tenants, keys and models used."""

from __future__ import annotations

import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from daemon.commands.client import admin
from daemon.commands.options import ConfigOption, JsonOption, RunDirOption, StateDirOption, settings_from
from engine.errors import ConfigError

app = typer.Typer(rich_markup_mode=None)
_COLUMNS = ("requests", "errors", "prompt_tokens", "cached_tokens", "output_tokens")


@app.command()
def usage(
    since: Annotated[str | None, typer.Option(help="ISO time with zone; else a day before `until`.")] = None,
    until: Annotated[str | None, typer.Option(help="ISO time with zone; else now.")] = None,
    by: Annotated[str, typer.Option(help="minute, hour, day or none.")] = "day",
    tenant: Annotated[str | None, typer.Option(help="Of this tenant only.")] = None,
    key: Annotated[str | None, typer.Option(help="Of the key with this id only.")] = None,
    model: Annotated[str | None, typer.Option(help="Of this model only.")] = None,
    export: Annotated[Path | None, typer.Option(help="Write CSV to this file; - is standard output.")] = None,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Requests, errors, tokens and device time by tenant, key and model."""
    what = {"since": _time(since), "until": _time(until), "by": by, "tenant": tenant, "key": key, "model": model}
    with admin(settings_from(config, state_dir, run_dir)) as client:
        if export is not None:
            text = client.text("usage/export", format="csv", **what)
            if str(export) == "-":
                sys.stdout.write(text)
            else:
                try:
                    export.write_text(text, encoding="utf-8")
                except OSError as error:
                    raise ConfigError(
                        f"{str(export)[:300]} cannot be written: {error.strerror or error}.", "Name another file."
                    ) from error
                print(f"{text.count(chr(10)) - 1} lines are in {export}")
            return
        answer = client.get("usage", **what)
        names = {item["id"]: item["name"] for item in client.all_items("tenants")}
    if as_json:
        print(json.dumps(answer, indent=2))
        return
    if not answer["items"]:
        print("nothing was used in that time")
        return
    rows = [("from", "tenant", "key", "model", *_COLUMNS, "device s")]
    for item in answer["items"]:
        figures = [f"{item[column]:,}" for column in _COLUMNS]
        owner = names.get(item["tenant_id"], item["tenant_id"])
        starts = item["starts_at"][:16]
        rows.append((starts, owner, item["key_id"], item["model"], *figures, f"{item['device_s']:.1f}"))
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _time(text: str | None) -> str | None:
    """Raises: typer.BadParameter for what is no time with a zone"""
    if text is None:
        return None
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is no ISO time") from error
    if parsed.tzinfo is None:
        raise typer.BadParameter(f"{text!r} has no zone; add Z or +02:00")
    return parsed.isoformat()
