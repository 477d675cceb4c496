"""Forms: a model as each kind of device would hold it, worked out once for all devices of a kind."""

from __future__ import annotations

from dataclasses import dataclass

from daemon.planning.budget import DeviceBudget
from daemon.planning.fit import FitModel
from daemon.planning.profile import MemoryItem
from daemon.planning.traffic import Traffic, traffic_of
from engine.spec.loaded import loaded_spec
from engine.spec.model_spec import ModelSpec
from engine.spec.precision import WeightPrecision
from engine.spec.quantisation import Storage

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
        self._made: dict[tuple[str, str, bool, str], Form] = {}

    def of(self, precision: str, budget: DeviceBudget) -> Form:
        key = (precision, activation_of(self._spec, precision, budget), budget.on_cpu, activation_dtype(budget))
        if key not in self._made:
            held = loaded_spec(self._spec, precision, on_cpu=budget.on_cpu, activation=key[1])
            traffic = traffic_of(held)
            fit = FitModel(held, traffic, budget.on_cpu, key[3], key[3], PAGE_TOKENS)
            self._made[key] = Form(held, traffic, fit.weights())
        return self._made[key]


def activation_of(spec: ModelSpec, precision: str, budget: DeviceBudget) -> str:
    """What a kernel may round activations of many rows to, as WorkerConfig.activation.

    E4M3 beside E4M3 where the device multiplies them; int8 beside matrices whose outlier inputs stay in 16 bits.
    Whole numbers without such keep exact activations.
    """
    if budget.on_cpu or "triton" not in budget.capabilities:
        return "exact"
    if precision == WeightPrecision.INT8_MIXED or (precision == WeightPrecision.STORED and _keeps_outliers(spec)):
        return "int8"
    is_fp8 = precision == WeightPrecision.FP8 or (precision == WeightPrecision.STORED and _is_fp8(spec))
    return "fp8" if is_fp8 and "fp8" in budget.capabilities else "exact"


def _is_fp8(spec: ModelSpec) -> bool:
    rules = () if spec.quantisation is None else spec.quantisation.rules
    return any(rule.scheme.storage is Storage.FLOAT8 for rule in rules)


def _keeps_outliers(spec: ModelSpec) -> bool:
    return spec.quantisation is not None and any(t.name.endswith(".outlier_columns") for t in spec.tensors)


def activation_dtype(budget: DeviceBudget) -> str:
    if budget.on_cpu:
        return "float32"
    return "bfloat16" if "bf16" in budget.capabilities else "float16"
