"""bayard version: what is installed."""

from __future__ import annotations

import json
import platform

import typer

from daemon.commands.options import JsonOption

app = typer.Typer(rich_markup_mode=None)


@app.command()
def version(as_json: JsonOption = False) -> None:
    """Print the version of Bayard, of its database schema and of its worker protocol."""
    from daemon import __version__
    from engine.messages import PROTOCOL_VERSION
    from migrations.index import REVISIONS

    facts = {
        "version": __version__,
        "schema": REVISIONS[-1],
        "worker_protocol": PROTOCOL_VERSION,
        "python": platform.python_version(),
    }
    print(json.dumps(facts) if as_json else "\n".join(f"{key:<16} {value}" for key, value in facts.items()))
