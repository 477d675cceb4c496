"""Noting: what workers really hold and how fast they really decode, kept to correct later predictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from daemon.planning.budget import DeviceBudget
from daemon.planning.fit import FitModel
from daemon.planning.kv_bytes import element_bytes
from daemon.planning.measurements import Measurements
from daemon.planning.speed import SpeedModel
from daemon.planning.traffic import traffic_of
from daemon.workers.states import WorkerState
from daemon.workers.view import WorkerView
from engine.messages import DecodePace, WorkerConfig, WorkerStats
from engine.spec.loaded import loaded_spec
from engine.spec.model_spec import ModelSpec

ENOUGH_STEPS = 200  # of one kind, for its pace to be known
WARM_STEPS = 50  # after them an accelerator's allocator holds what it will


class Noting:
    """Owner: the PlanningDesk. Each thing once a process. Blocks: the store; call from threads."""

    def __init__(
        self,
        measurements: Measurements,
        spec_of: Callable[[str], ModelSpec],
        budget_of: Callable[[str], DeviceBudget | None],
    ) -> None:
        self._measurements = measurements
        self._spec_of = spec_of
        self._budget_of = budget_of
        self._noted: set[tuple[int | None, str]] = set()

    def note(self, views: Sequence[WorkerView]) -> None:
        for view in views:
            if view.state is WorkerState.READY and view.stats is not None:
                self._note_memory(view, view.stats)
                for kind, pace in (("alone", view.stats.alone), ("together", view.stats.together)):
                    if pace.steps >= ENOUGH_STEPS and self._is_first(view, kind):
                        self._note_pace(view.model, view.config, kind, pace)

    def _note_memory(self, view: WorkerView, stats: WorkerStats) -> None:
        """On a CPU before the first step, since pages count as they are touched; on an accelerator when it is warm."""
        config = view.config
        fit = self._fit(view.model, config)
        if config.device == "cpu":
            predicted, measured, is_time = fit.loaded_bytes(), stats.rss_bytes, stats.step == 0
        else:
            predicted = fit.allocated_bytes(config.knobs, config.kv_tokens)
            measured, is_time = stats.device_bytes, stats.step >= WARM_STEPS
        # A process that holds half or twice the prediction is not what was predicted: it would mislead.
        if is_time and measured and self._is_first(view, "memory") and 0.5 < measured / predicted < 2.0:
            self._measurements.save_memory(view.model, config.device, config.weights, predicted, measured)

    def _note_pace(self, model: str, config: WorkerConfig, kind: str, pace: DecodePace) -> None:
        budget = self._budget_of(config.device)
        if budget is None:
            return
        spec = loaded_spec(self._spec_of(model), config.weights, on_cpu=budget.on_cpu, activation=config.activation)
        if config.kv_dtype == "auto" or spec.is_encoder:
            return
        speed = SpeedModel(
            spec, traffic_of(spec), self._measurements.rates(budget), element_bytes(spec, config.kv_dtype)
        )
        predicted_s = speed.step(round(pace.rows), 0, pace.context_tokens).total_s
        self._measurements.save_pace(model, config.device, config.weights, kind, predicted_s, pace.step_s)

    def _fit(self, model: str, config: WorkerConfig) -> FitModel:
        on_cpu = config.device == "cpu"
        spec = loaded_spec(self._spec_of(model), config.weights, on_cpu=on_cpu, activation=config.activation)
        return FitModel(spec, traffic_of(spec), on_cpu, config.dtype, config.kv_dtype, config.page_tokens)

    def _is_first(self, view: WorkerView, kind: str) -> bool:
        key = (view.pid, kind)
        if key in self._noted:
            return False
        self._noted.add(key)
        return True
