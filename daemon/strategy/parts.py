"""The parts that know models and plans, put together once for the daemon and for commands without one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from daemon.events import EventLog
from daemon.models.aliases import Aliases
from daemon.models.registry import ModelRegistry
from daemon.planning.install import EngineInstall
from daemon.planning.measurements import Measurements
from daemon.settings import Settings
from daemon.store.marks import MarkKind, Marks
from daemon.store.session import Store
from daemon.strategy.desk import OwnMemory, PlanningDesk
from daemon.strategy.plans import OPERATOR, Plans
from daemon.strategy.room import MachineRoom
from daemon.strategy.rules import Rules
from daemon.workers.view import WorkerView


@dataclass(frozen=True, slots=True)
class StrategyParts:
    models: ModelRegistry
    aliases: Aliases
    plans: Plans
    rules: Rules
    measurements: Measurements
    desk: PlanningDesk
    room: MachineRoom


def build_parts(
    store: Store, settings: Settings, events: EventLog, views: Callable[[], list[WorkerView]] = list
) -> StrategyParts:
    """views: the supervisor's, where there is one."""
    import hwdetect

    limit_bytes = settings.workers.host_memory_bytes
    detect = partial(hwdetect.detect, memory_setting_bytes=limit_bytes or None)
    models = ModelRegistry(store, settings, events)
    plans = Plans(store, events)
    measurements = Measurements(store)
    desk = PlanningDesk(
        settings,
        events,
        models,
        plans,
        measurements,
        detect=detect,
        own_memory=lambda: own_memory(views()),
        drained=lambda: drained_devices(store),
    )
    room = MachineRoom(hwdetect.detect, EngineInstall.here(), limit_bytes)
    models.on_imported = desk.add_imported
    models.on_adapter = desk.add_adapter
    aliases = Aliases(store, events)
    models.users_of = lambda name: users_of(name, plans, views()) + [f"alias {alias}" for alias in aliases.of(name)]
    return StrategyParts(models, aliases, plans, Rules(store, events, settings), measurements, desk, room)


def drained_devices(store: Store) -> dict[str, str]:
    """Devices that operators have taken out of use, and why. Blocks: reads the store."""
    return {device: mark.reason for device, mark in Marks(store).all(MarkKind.DRAINED).items()}


def own_memory(views: list[WorkerView]) -> OwnMemory:
    """What running workers hold by their own last word."""
    held: dict[str, int] = {}
    for view in views:
        if view.stats is not None:
            held["cpu"] = held.get("cpu", 0) + view.stats.rss_bytes
            if view.config.device != "cpu":
                held[view.config.device] = held.get(view.config.device, 0) + view.stats.device_bytes
    return OwnMemory(held, frozenset(view.pid for view in views if view.pid is not None))


def users_of(model: str, plans: Plans, views: list[WorkerView]) -> list[str]:
    """What keeps a model from being deleted: plans that load it, and workers that serve it."""
    found = []
    for plan in plans.all():
        if model in plan.names:
            found.append(f"plan {plan.name}" + ("" if plan.origin == OPERATOR else " (automatic)"))
    return found + [f"worker {view.name} ({view.state.value})" for view in views if view.model == model]
