"""Asking the planner for a command: through the daemon, with the state folder, or with neither."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import hwdetect
from daemon.commands.client import offline_or_admin
from daemon.planning.answer_json import answer_from_json
from daemon.planning.install import EngineInstall
from daemon.planning.machine_budgets import budgets_of
from daemon.planning.plan import Planner, Request
from daemon.planning.profile import PlanAnswer
from daemon.settings import Settings
from engine.errors import InvalidParameter
from engine.spec import read_spec
from hwdetect.machine import Machine


def answer_of(target: str, request: Request, machine: Machine | None, settings: Settings) -> PlanAnswer:
    """For another machine the files are read here; else by whoever owns the state folder, if anybody can."""
    path = Path(target).expanduser()
    is_path = path.exists()
    if is_path:
        target = str(path.absolute())
    if is_path and (machine is not None or not settings.state_dir.exists()):
        return _stateless(path.absolute(), request, machine)
    with offline_or_admin(settings) as reach:
        if reach.admin is None:
            return reach.parts().desk.answer(target, request, machine)
        if machine is not None:
            return _stateless(Path(reach.admin.get(f"models/{quote(target)}")["item"]["path"]), request, machine)
        body = {
            "target": target,
            "strategy": request.strategy.value,
            "context_tokens": request.context_tokens,
            "users": request.users,
            "weights": request.weights,
        }
        told = reach.admin.post("plans/preview", body)["answer"]
    return answer_from_json(told)


def _stateless(path: Path, request: Request, machine: Machine | None) -> PlanAnswer:
    """Without any state: shipped rates, and a model that nobody imported."""
    spec = read_spec(path)
    if machine is not None:
        return Planner(budgets_of(machine, EngineInstall.full(), idle=True)).answer(spec, request)
    return Planner(budgets_of(hwdetect.detect(), EngineInstall.here())).answer(spec, request)


def machine_of(path: Path) -> Machine:
    """Raises: InvalidParameter for a file that is no machine description."""
    try:
        return Machine.from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError) as error:
        raise InvalidParameter(
            f"{path} is no machine description: {error}.", "Make one there with `bayard hw --json`.", param="machine"
        ) from error
