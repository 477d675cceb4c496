"""What was there before a write, for the audit: few words that a person can compare with what came after."""

from __future__ import annotations

import asyncio
from typing import Any

from daemon.api.admin.services import AdminServices
from engine.errors import ModelNotFound, NotFound


async def in_force(services: AdminServices) -> dict[str, Any]:
    """The plan, and the override that holds it where there is one."""
    view = await asyncio.to_thread(services.controller.view)
    above = view.override
    return {"plan": view.plan, "override": above.plan if above else None, "reason": view.reason}


async def plan_facts(services: AdminServices, name: str) -> dict[str, Any] | None:
    """None where there is none of that name."""
    try:
        plan = await asyncio.to_thread(services.plans.get, name)
    except NotFound:
        return None
    models = [f"{profile.model} on {profile.device}, {profile.weights}" for profile in plan.profiles]
    return {"strategy": plan.strategy.value, "models": models, "updated_at": plan.updated_at}


async def rule_facts(services: AdminServices, name: str) -> dict[str, Any] | None:
    """None where there is none of that name."""
    keys = ("cron", "duration_s", "plan", "timezone", "enabled")
    for rule in await asyncio.to_thread(services.rules.all):
        if rule.name == name:
            excepted = [day.isoformat() for day in rule.except_dates]
            return {**{key: getattr(rule, key) for key in keys}, "except_dates": excepted}
    return None


async def model_facts(services: AdminServices, name: str) -> dict[str, Any] | None:
    """None where there is none of that name."""
    try:
        record = await asyncio.to_thread(services.models.get, name)
    except ModelNotFound:
        return None
    digests = [file.sha256[:16] for file in record.files]
    return {
        "path": record.path,
        "architecture": record.architecture,
        "weight_bytes": record.weight_bytes,
        "sha256": digests,
    }
