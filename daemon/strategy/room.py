"""Room: whether a second worker fits on a device beside those that run there now."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from daemon.planning.budget import Claim
from daemon.planning.install import EngineInstall
from daemon.planning.machine_budgets import budgets_of
from daemon.planning.profile import Profile
from daemon.planning.units import human_bytes
from daemon.workers.view import WorkerView
from hwdetect.machine import Machine


@dataclass(frozen=True, slots=True)
class RoomAnswer:
    fits: bool
    reason: str  # with both numbers


@dataclass(frozen=True, slots=True)
class MachineRoom:
    """Blocks: looks at the hardware. Call from threads."""

    detect: Callable[[], Machine]
    install: EngineInstall

    def beside(self, profile: Profile, views: Sequence[WorkerView], promised: Mapping[str, int]) -> RoomAnswer:
        """promised: by worker, the peak its profile states; what it does not hold yet is not free."""
        claims: list[Claim] = []
        for view in views:
            if view.config.device == profile.device and view.name in promised:
                missing = promised[view.name] - _held_bytes(view)
                if missing > 0:
                    claims.append(Claim(f"{view.name}, which may still grow", missing))
        budgets = budgets_of(self.detect(), self.install, {profile.device: claims})
        budget = next((budget for budget in budgets if budget.device == profile.device), None)
        need = profile.memory.total_bytes
        if budget is None or budget.unusable is not None:
            return RoomAnswer(False, f"{profile.device} cannot be used now")
        have = budget.usable_bytes
        told = f"a second worker needs {human_bytes(need)}; {human_bytes(have)} are free beside the first"
        return RoomAnswer(need <= have, told)


def no_room(profile: Profile, views: Sequence[WorkerView], promised: Mapping[str, int]) -> RoomAnswer:
    """For where nobody can look at the memory."""
    return RoomAnswer(False, "free memory is not known")


def _held_bytes(view: WorkerView) -> int:
    if view.stats is None:
        return 0
    return view.stats.rss_bytes if view.config.device == "cpu" else view.stats.device_bytes
