"""Alike: devices of one machine that a plan need not be told apart on."""

from __future__ import annotations

from collections.abc import Sequence

from daemon.planning.budget import DeviceBudget


class Alike:
    """Devices that differ in their number alone: one of them speaks for all."""

    def __init__(self, budgets: Sequence[DeviceBudget]) -> None:
        self._groups: dict[object, list[str]] = {}
        for budget in budgets:
            self._groups.setdefault(self._key(budget), []).append(budget.device)

    def is_told(self, budget: DeviceBudget) -> bool:
        return self._groups[self._key(budget)][0] != budget.device

    def note(self, budget: DeviceBudget) -> str:
        others = len(self._groups[self._key(budget)]) - 1
        return f"or on {others} alike" if others else ""

    @staticmethod
    def _key(budget: DeviceBudget) -> object:
        return budget.name, budget.usable_bytes, budget.capabilities, budget.unusable
