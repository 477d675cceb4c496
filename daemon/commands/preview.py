"""Asking the planner for a command: through the daemon, with the state folder, or with neither."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

import hwdetect
from daemon.commands.client import offline_or_admin
from daemon.planning.answer_json import answer_from_json
from daemon.planning.install import EngineInstall
from daemon.planning.machine_budgets import budgets_of, claims_of
from daemon.planning.plan import Planner, Request
from daemon.planning.precisions import WhenToRound
from daemon.planning.profile import PlanAnswer, Profile
from daemon.settings import Settings
from engine.errors import InvalidParameter
from engine.spec import read_spec
from engine.spec.place import is_there, place_of
from hwdetect.machine import Machine

_MACHINE_MOST_BYTES = 16 << 20


def answers_of(
    targets: Sequence[str], request: Request, machine: Machine | None, settings: Settings
) -> list[PlanAnswer]:
    """One answer a target, each planned beside those before it that fit."""
    answers: list[PlanAnswer] = []
    for target in targets:
        beside = [answer.chosen for answer in answers if answer.chosen is not None]
        answers.append(answer_of(target, request, machine, settings, beside))
    return answers


def answer_of(
    target: str, request: Request, machine: Machine | None, settings: Settings, beside: Sequence[Profile] = ()
) -> PlanAnswer:
    """For another machine the files are read here; else by whoever owns the state folder, if anybody can."""
    if not target:
        raise InvalidParameter("the model's name is empty.", "Name an imported model, a file or a folder.")
    path = place_of(target)
    is_path = is_there(path)
    if is_path:
        target = str(path.absolute())
    if is_path and (machine is not None or not settings.state_dir.exists()):
        return _stateless(path.absolute(), request, machine, settings, beside)
    with offline_or_admin(settings) as reach:
        if reach.admin is None:
            return reach.parts().desk.answer(target, request, machine, beside)
        if machine is not None:
            path = Path(reach.admin.get(f"models/{quote(target)}")["item"]["path"])
            return _stateless(path, request, machine, settings, beside)
        body = {
            "target": target,
            "strategy": request.strategy.value,
            "context_tokens": request.context_tokens,
            "users": request.users,
            "weights": request.weights,
            "kv_dtype": request.kv_dtype,
            "beside": [profile.to_json() for profile in beside],
        }
        told = reach.admin.post("plans/preview", body)["answer"]
    return answer_from_json(told)


def _stateless(
    path: Path, request: Request, machine: Machine | None, settings: Settings, beside: Sequence[Profile]
) -> PlanAnswer:
    """Without any state: shipped rates, and a model that nobody imported."""
    spec, claims, ours = read_spec(path), claims_of(beside), settings.workers
    rounding = WhenToRound(ours.round_weights)
    if machine is not None:
        budgets = budgets_of(machine, EngineInstall.full(), claims, idle=True)
        return Planner(budgets, rounding=rounding).answer(spec, request)
    here = hwdetect.detect(memory_setting_bytes=ours.host_memory_bytes or None)
    budgets = budgets_of(here, EngineInstall.here(), claims)
    return Planner(budgets, threads=ours.threads, rounding=rounding).answer(spec, request)


def machine_of(path: Path) -> Machine:
    """Raises: InvalidParameter for a file that is no machine description."""
    try:
        with path.open("rb") as file:
            text = file.read(_MACHINE_MOST_BYTES + 1)
        if len(text) > _MACHINE_MOST_BYTES:
            raise ValueError(f"it has more than {_MACHINE_MOST_BYTES:,} bytes")
        return Machine.from_json(text.decode("utf-8"))
    except (OSError, ValueError, TypeError, OverflowError, RecursionError) as error:
        why = "it is nested too deep" if isinstance(error, RecursionError) else str(error)[:300]
        raise InvalidParameter(
            f"{str(path)[:300]} is no machine description: {why}.",
            "Make one there with `bayard hw --json`.",
            param="machine",
        ) from error
