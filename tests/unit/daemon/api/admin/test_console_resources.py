"""Every resource and verb that the console's design names is there, and every write has a command with --json."""

from __future__ import annotations

import re

import pytest
import typer
from fastapi.routing import APIRoute

from daemon.api.admin.app import ROUTERS
from daemon.cli import app as bayard

# As the design page of the console lists them; (a|b) are alternatives that all have to be there.
NAMED = """
GET status, host, whoami, metrics/summary, events, attention, accelerators, accelerators/{}, accelerators/{}/history
GET models, models/{}, imports, imports/{}, plans, plans/{}, workers, workers/{}, requests, requests/{}, admission
GET tenants, tenants/{}, tenants/{}/keys, keys, keys/{}, usage, usage/export
GET schedule/rules, schedule/rules/{}, schedule/overrides, schedule/overrides/{}, schedule/timeline
GET audit, audit/verify, logs, logs/stream, doctor/checks, doctor/runs/{}, settings, backups, certificates
GET operations, operations/{}
POST attention/{}/ack, accelerators/rescan, accelerators/{}/drain, accelerators/{}/undrain, models/{}/verify, imports
POST plans/preview, plans/{}/activate, plans/rollback, requests/{}/cancel, admission/pause, admission/resume
POST workers/{}/restart, workers/{}/drain, workers/{}/stop, workers/{}/kill, workers/{}/clear-latch
POST tenants, tenants/{}/keys, keys/{}/rotate, keys/{}/revoke, schedule/rules, schedule/overrides
POST schedule/preview, schedule/hold, schedule/release, doctor/runs, doctor/bundles, backups, backups/{}/restore
POST certificates/rotate, operations/{}/cancel
PUT plans/{}, tenants/{}/limits
PATCH settings, tenants/{}, schedule/rules/{}
DELETE models/{}, plans/{}, tenants/{}, schedule/rules/{}, schedule/overrides/{}
"""

# "VERB path": the command that does the same
TWINS = {
    "POST attention/{}/ack": "attention",
    "POST accelerators/rescan": "hw",
    "POST accelerators/{}/drain": "hw",
    "POST accelerators/{}/undrain": "hw",
    "POST doctor/runs": "doctor",
    "POST doctor/bundles": "support-bundle",
    "POST imports": "models import",
    "POST models/{}/verify": "models verify",
    "DELETE models/{}": "models delete",
    "PUT models/{}/quality": "quality",
    "POST operations/{}/cancel": "operations cancel",
    "POST plans/preview": "plan preview",
    "PUT plans/{}": "plan save",
    "POST plans/{}/activate": "plan activate",
    "DELETE plans/{}": "plan delete",
    "PUT plans/{}/adaptive": "plan adapt",
    "PUT plans/{}/on-demand": "plan on-demand",
    "POST plans/rollback": "plan rollback",
    "POST calibrations": "calibrate",
    "POST workers/{}/restart": "workers restart",
    "POST workers/{}/clear-latch": "workers clear-latch",
    "POST workers/{}/drain": "workers drain",
    "POST workers/{}/stop": "workers stop",
    "POST workers/{}/wake": "workers wake",
    "POST workers/{}/kill": "workers kill",
    "POST requests/{}/cancel": "requests cancel",
    "POST schedule/rules": "schedule add",
    "PATCH schedule/rules/{}": "schedule change",
    "DELETE schedule/rules/{}": "schedule remove",
    "POST schedule/release": "schedule release",
    "DELETE schedule/overrides/{}": "schedule override",
    "POST schedule/overrides": "schedule override",
    "POST schedule/hold": "schedule hold",
    "POST schedule/preview": "schedule preview",
    "POST tenants": "tenants create",
    "PATCH tenants/{}": "tenants change",
    "DELETE tenants/{}": "tenants delete",
    "PUT tenants/{}/limits": "tenants limits",
    "POST tenants/{}/suspend": "tenants suspend",
    "POST tenants/{}/resume": "tenants resume",
    "POST tenants/{}/keys": "keys create",
    "POST keys/{}/revoke": "keys revoke",
    "POST keys/{}/rotate": "keys rotate",
    "POST admission/pause": "admission pause",
    "POST admission/resume": "admission resume",
    "POST bundles/imports": "bundle import",
    "PUT aliases/{}": "models alias",
    "DELETE aliases/{}": "models unalias",
    "POST certificates/rotate": "tls rotate",
    "POST backups": "backup",
    "POST backups/{}/restore": "restore",
    "DELETE backups/restore": "restore",
    "PATCH settings": "config set",
    "POST settings/reload": "config reload",
}


def served() -> set[str]:
    found = set()
    for router in ROUTERS:
        for route in router.routes:
            if isinstance(route, APIRoute):
                path = re.sub(r"\{[^}]*\}", "{}", route.path.lstrip("/"))
                found |= {f"{method} {path}" for method in route.methods}
    return found


def named() -> list[str]:
    lines = [line.split(" ", 1) for line in NAMED.strip().splitlines()]
    return [f"{verb} {path.strip()}" for verb, paths in lines for path in paths.split(",")]


@pytest.mark.parametrize("what", named())
def test_named_resource_is_served(what: str) -> None:
    assert what in served()


def test_every_write_has_a_twin() -> None:
    assert {what for what in served() if not what.startswith("GET")} == set(TWINS)


@pytest.mark.parametrize("words", sorted(set(TWINS.values())))
def test_twin_is_a_command_that_speaks_json(words: str) -> None:
    command = typer.main.get_command(bayard)
    for word in words.split():
        inner = command.get_command(None, word) if hasattr(command, "get_command") else None  # type: ignore[arg-type]
        if inner is None:  # a group whose callback is the command itself
            break
        command = inner
    assert words.endswith(str(command.name)) or words.split()[0] == command.name, f"bayard {words} is no command"
    assert any("--json" in parameter.opts for parameter in command.params), words
