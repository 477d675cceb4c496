"""Room: whether a second worker fits on a device beside those that run there now."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from daemon.planning.budget import Claim
from daemon.planning.install import EngineInstall
from daemon.planning.machine_budgets import budgets_of
from daemon.planning.profile import Profile
from daemon.planning.units import human_bytes
from daemon.strategy.resting import held_bytes
from daemon.workers.states import WorkerState
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
    limit_bytes: int = 0  # host memory that all workers may hold together; 0: all there is

    def beside(
        self, profile: Profile, views: Sequence[WorkerView], promised: Mapping[str, int], returned_bytes: int = 0
    ) -> RoomAnswer:
        """promised: by worker, the peak its profile states; what it does not hold yet is not free, unless it sleeps.

        returned_bytes: what is held on the device now and is the new one's own, or will be given back
        """
        claims: list[Claim] = []
        for view in views:
            if view.state is WorkerState.SLEEPING:
                continue
            if view.config.device == profile.device and view.name in promised:
                missing = promised[view.name] - held_bytes(view)
                if missing > 0:
                    claims.append(Claim(f"{view.name}, which may still grow", missing))
        returned = {profile.device: returned_bytes}
        budgets = budgets_of(self.detect(), self.install, {profile.device: claims}, returned_bytes=returned)
        budget = next((budget for budget in budgets if budget.device == profile.device), None)
        need = profile.memory.total_bytes
        if budget is None or budget.unusable is not None:
            return RoomAnswer(False, f"{profile.device} cannot be used now")
        have = budget.usable_bytes
        if self.limit_bytes and budget.on_cpu:
            held = sum(held_bytes(view) for view in views) + sum(claim.size_bytes for claim in claims)
            have = max(0, min(have, self.limit_bytes + returned_bytes - held))
        told = f"it needs {human_bytes(need)}; {human_bytes(have)} are free beside what runs"
        return RoomAnswer(need <= have, told)


def no_room(
    profile: Profile, views: Sequence[WorkerView], promised: Mapping[str, int], returned_bytes: int = 0
) -> RoomAnswer:
    """For where nobody can look at the memory."""
    return RoomAnswer(False, "free memory is not known")
