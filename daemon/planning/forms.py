"""Forms: a model as each kind of device would hold it, worked out once for all devices of a kind."""

from __future__ import annotations

from dataclasses import dataclass

from daemon.planning.budget import DeviceBudget
from daemon.planning.fit import FitModel
from daemon.planning.profile import MemoryItem
from daemon.planning.traffic import Traffic, traffic_of
from engine.spec.loaded import loaded_spec
from engine.spec.model_spec import ModelSpec

PAGE_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Form:
    """A model as a kind of device would hold it."""

    spec: ModelSpec
    traffic: Traffic
    weights: MemoryItem


class Forms:
    """Owner: one planning answer."""

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec
        self._made: dict[tuple[str, bool, str], Form] = {}

    def of(self, precision: str, budget: DeviceBudget) -> Form:
        key = (precision, budget.on_cpu, activation_dtype(budget))
        if key not in self._made:
            held = loaded_spec(self._spec, precision, on_cpu=budget.on_cpu)
            traffic = traffic_of(held)
            fit = FitModel(held, traffic, budget.on_cpu, key[2], key[2], PAGE_TOKENS)
            self._made[key] = Form(held, traffic, fit.weights())
        return self._made[key]


def activation_dtype(budget: DeviceBudget) -> str:
    if budget.on_cpu:
        return "float32"
    return "bfloat16" if "bf16" in budget.capabilities else "float16"
