"""Writes docs/settings.md and docs/metrics.md from the code: `python -m daemon.reference DOCS_FOLDER`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from daemon.settings_load import setting_fields, variable_of
from daemon.telemetry.catalogue import EVERY

PATHS = {
    "state_dir": "`/var/lib/bayard` for the service and for root, else `$XDG_STATE_HOME/bayard`",
    "run_dir": "`/run/bayard` for the service and root, else `$XDG_RUNTIME_DIR/bayard`; `run` in a chosen state_dir",
    "admin_socket": "`admin.sock` in run_dir",
}


def settings_page() -> str:
    """docs/settings.md as it should be."""
    lines = [
        "# Settings",
        "",
        "Made by `python -m daemon.reference docs`; do not edit.",
        "",
        "Read from one TOML file (`/etc/bayard/bayard.toml` for the service, else in `$XDG_CONFIG_HOME/bayard`;",
        "`--config` or `BAYARD_CONFIG` names another), then what `bayard config set` changed, then the environment,",
        "then flags (`--set KEY=VALUE`).",
        "The later wins. An unknown key or `BAYARD_` variable is refused. `bayard config show` prints what holds.",
        "A dot in a key is a table of the file: `http.port` is `port` under `[http]`.",
        "",
        "| key | default | variable | meaning |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| `{key}` | {_default(key, info)} | `{variable_of(key)}` | {_meaning(info)} |"
        for key, info in setting_fields().items()
    ]
    return "\n".join(lines) + "\n"


def metrics_page() -> str:
    """docs/metrics.md as it should be."""
    lines = [
        "# Metrics",
        "",
        "Made by `python -m daemon.reference docs`; do not edit.",
        "",
        "`GET /metrics` in the Prometheus text format. A value nobody knows has no sample; 0 is a measured zero.",
        "Labels are bounded: models and workers of this box, route templates, states; never tenants, keys or texts.",
        "",
        "| metric | kind | labels | meaning |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| `{spec.name}` | {spec.kind} | {', '.join(spec.labels) or 'none'} | {_escaped(spec.meaning)} |"
        for spec in EVERY
    ]
    return "\n".join(lines) + "\n"


def _default(key: str, info: FieldInfo) -> str:
    if key in PATHS:
        return PATHS[key]
    value = info.get_default()
    return f"`{json.dumps(value.get_secret_value() if isinstance(value, SecretStr) else value)}`"


def _meaning(info: FieldInfo) -> str:
    text = _escaped(info.description or "")
    kind: Any = info.annotation
    if get_origin(kind) is Literal:
        text += " One of " + ", ".join(f"`{choice}`" for choice in get_args(kind)) + "."
    return text


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> None:
    folder = Path(sys.argv[1])
    (folder / "settings.md").write_text(settings_page(), encoding="utf-8")
    (folder / "metrics.md").write_text(metrics_page(), encoding="utf-8")


if __name__ == "__main__":
    main()
