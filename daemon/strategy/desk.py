"""The planning desk: answers about models by name or path, and makes, keeps and clears the plans that are saved."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from daemon.events import EventLog
from daemon.models.record import ModelRecord
from daemon.models.registry import ModelRegistry
from daemon.planning.budget import DeviceBudget
from daemon.planning.calibrate import kinds_for, measure, never
from daemon.planning.install import EngineInstall
from daemon.planning.machine_budgets import budgets_of, claims_of
from daemon.planning.measurements import Measurements
from daemon.planning.plan import Planner, Request
from daemon.planning.precisions import WhenToRound
from daemon.planning.profile import AdapterRef, PlanAnswer, Profile
from daemon.planning.quality import quality_notes
from daemon.planning.rates import MEASURED, DeviceRates
from daemon.planning.strategy import Strategy
from daemon.planning.traffic import traffic_of
from daemon.settings import Settings
from daemon.store.base import utc_now
from daemon.strategy.noting import Noting
from daemon.strategy.plans import AUTO, OPERATOR, Plans, SavedPlan
from daemon.workers.view import WorkerView
from engine.errors import BayardError, Conflict, DoesNotFit, InvalidParameter, NotFound
from engine.spec import read_spec
from engine.spec.loaded import loaded_spec
from engine.spec.model_spec import ModelSpec
from engine.spec.place import place_of
from hwdetect.machine import Machine

_PROBE_BYTES, _DEVICE_PROBE_BYTES = 2 << 30, 12 << 30  # what a calibration holds of a host and of an accelerator
AUTOMATIC = (Strategy.LATENCY, Strategy.THROUGHPUT)


@dataclass(frozen=True, slots=True)
class OwnMemory:
    """Memory that Bayard's own workers hold now, by device: free again for a plan that replaces them."""

    held_bytes: Mapping[str, int]
    pids: frozenset[int] = frozenset()


class PlanningDesk:
    """Blocks: reads headers, the store and the hardware. Call from threads, never from the event loop."""

    def __init__(
        self,
        settings: Settings,
        events: EventLog,
        models: ModelRegistry,
        plans: Plans,
        measurements: Measurements,
        *,
        detect: Callable[[], Machine],
        own_memory: Callable[[], OwnMemory] = lambda: OwnMemory({}),
        drained: Callable[[], Mapping[str, str]] = dict,
        install: EngineInstall | None = None,
    ) -> None:
        self._settings = settings
        self._events = events
        self._models = models
        self._plans = plans
        self._measurements = measurements
        self._detect = detect
        self._own_memory = own_memory
        self.drained = drained  # devices out of use, and why
        self._install = install or EngineInstall.here()
        self._noting = Noting(measurements, self.spec_of, self._budget_of)

    def answer(
        self, target: str, request: Request, machine: Machine | None = None, beside: Sequence[Profile] = ()
    ) -> PlanAnswer:
        """What `bayard plan TARGET` says: a model's name, or a path of one not yet imported.

        machine: plan for that description, as if idle and fully installed. beside: profiles that run at the same time.
        Raises: NotFound, ModelNotFound, UnsupportedFormat, InvalidParameter.
        """
        spec = self.spec_of(target)
        answer = self.planner(machine, beside).answer(spec, request)
        return replace(answer, notes=(*answer.notes, *quality_notes(self._measurements.quality(spec.name))))

    def spec_of(self, target: str) -> ModelSpec:
        """The description of an imported model under its name there, or of an absolute path.

        Raises: ModelNotFound, NotFound, UnsupportedFormat, ConfigError
        """
        if target not in self._models.names() and (path := place_of(target)).is_absolute():
            return read_spec(path)
        return self.spec_of_imported(target)

    def spec_of_imported(self, model: str) -> ModelSpec:
        """Under the name that it was given. Raises: ModelNotFound, which says what names there are"""
        record = self._models.get(model)
        return replace(read_spec(record.path), name=record.name)

    def quality(self, model: str) -> list[dict[str, object]]:
        """What was measured of this model's precisions, the newest first."""
        return self._measurements.quality(model)

    def save_quality(self, model: str, found: dict[str, object]) -> None:
        """Keep what `bayard quality` measured of an imported model. Raises: ModelNotFound"""
        self._measurements.save_quality(self._models.get(model).name, found)

    def planner(self, machine: Machine | None = None, beside: Sequence[Profile] = ()) -> Planner:
        claims = claims_of(beside)
        if machine is not None:
            budgets = budgets_of(machine, EngineInstall.full(), claims, idle=True)
            return Planner(budgets, rounding=self._rounding)
        own = self._own_memory()
        budgets = budgets_of(
            self._detect(), self._install, claims, own.pids, returned_bytes=own.held_bytes, drained=self.drained()
        )
        return Planner(
            budgets,
            self._measurements.rates,
            self._measurements.memory_correction,
            self._settings.workers.threads,
            self._rounding,
            self._measurements.price,
            self._measurements.pace,
        )

    @property
    def _rounding(self) -> WhenToRound:
        return WhenToRound(self._settings.workers.round_weights)

    def save(
        self,
        name: str,
        strategy: Strategy,
        models: Sequence[str],
        context_tokens: int | None = None,
        users: int | None = None,
        weights: str | None = None,
        kv_dtype: str | None = None,
        even_automatic: bool = False,
    ) -> SavedPlan:
        """Plan imported models together, each beside those before it, and save the outcome.

        even_automatic: in the place of a plan that imports keep up to date, which they then do no more
        Raises: DoesNotFit for the first model that has no room, with both numbers; ModelNotFound, InvalidParameter;
        Conflict for the name of an automatic plan.
        """
        if not even_automatic and self._plans.origin_of(name) == AUTO:
            raise Conflict(
                f"plan {name} is automatic: imports keep it up to date, and would no more.",
                "Save under another name, or take its place with --replace-automatic.",
            )
        if not models:
            raise InvalidParameter("no model was named.", "Name at least one imported model.", param="models")
        if len(set(models)) < len(models):
            raise InvalidParameter("a model was named twice.", "Name each model once.", param="models")
        profiles: list[Profile] = []
        for model in models:
            record = self._models.get(model)
            if record.base is not None:
                raise InvalidParameter(
                    f"{model} is an adapter of {record.base}.",
                    f"Name {record.base}: its adapters come along.",
                    param="models",
                )
            spec = self.spec_of_imported(model)
            asked = Request(strategy, context_tokens, users, kv_dtype, weights=weights)
            answer = self.planner(beside=profiles).answer(spec, asked)
            profiles.append(self.with_adapters(_chosen(answer)))
        now = utc_now()
        plan = SavedPlan(name, strategy, OPERATOR, tuple(profiles), "", now, now)
        return self._plans.save(plan, "made by an operator")

    def add_imported(self, record: ModelRecord, spec: ModelSpec) -> None:
        """Give a new model its place in the automatic plans, or say in an event why it has none."""
        spec = replace(spec, name=record.name)
        saved = {plan.name: plan for plan in self._plans.all()}
        mine = {s: saved.get(s.value) for s in AUTOMATIC}
        usable = [s for s, plan in mine.items() if plan is None or plan.origin == AUTO]
        beside = {s: () if (plan := mine[s]) is None else plan.profiles for s in usable}
        answers = self.answers(spec, usable, beside)
        for strategy, answer in answers.items():
            if answer.chosen is None:
                self._events.publish("plan", strategy.value, "saved", "saved", _why_not(record.name, answer))
                continue
            plan = mine[strategy] or SavedPlan(
                strategy.value, strategy, AUTO, (), "kept up to date by imports", utc_now(), utc_now()
            )
            self._plans.save(plan.with_profile(self.with_adapters(answer.chosen)), f"model {record.name} was imported")
        if self._plans.default() is None:
            first = next((s.value for s, answer in answers.items() if answer.chosen is not None), None)
            if first is not None:
                self._plans.set_default(first, "the first import")

    def add_adapter(self, record: ModelRecord) -> None:
        """Give a new adapter to every plan that loads its base; workers that run it start anew for that."""
        for plan in self._plans.all():
            profile = None if record.base is None else plan.profile_of(record.base)
            if profile is not None:
                self._plans.save(plan.with_profile(self.with_adapters(profile)), f"adapter {record.name} was imported")

    def with_adapters(self, profile: Profile, without: str = "") -> Profile:
        """With all that are imported for its model."""
        found = [record for record in self._models.adapters_of(profile.model) if record.name != without]
        return profile.with_adapters(tuple(AdapterRef(r.name, r.path, r.weight_bytes) for r in found))

    def answers(
        self, spec: ModelSpec, strategies: Sequence[Strategy], beside: Mapping[Strategy, Sequence[Profile]]
    ) -> dict[Strategy, PlanAnswer]:
        """Together where the plans hold the same models, so that going between them moves knobs alone."""
        shapes = {tuple((p.model, p.memory.total_bytes) for p in beside[s]) for s in strategies}
        if len(shapes) <= 1 or all(not profiles for profiles in beside.values()):
            return self.planner(beside=beside[strategies[0]] if strategies else ()).pair(spec, strategies)
        heaviest = max(beside.values(), key=lambda profiles: sum(p.memory.total_bytes for p in profiles))
        if {p.model for profiles in beside.values() for p in profiles} == {p.model for p in heaviest}:
            return self.planner(beside=heaviest).pair(spec, strategies)
        return {s: self.planner(beside=beside[s]).answer(spec, Request(s)) for s in strategies}

    def withdraw(self, model: str) -> list[str]:
        """Take a model out of the automatic plans; a plan left without models goes. Returns the plans changed.

        Raises: ModelNotFound; Conflict when an operator's plan loads it, or a schedule rule needs a plan that goes.
        """
        record = self._models.get(model)
        if record.base is not None:
            return self._withdraw_adapter(record)
        adapters = ", ".join(adapter.name for adapter in self._models.adapters_of(model))
        if adapters:
            raise Conflict(f"model {model} is the base of {adapters}.", "Delete its adapters first.")
        using = [plan for plan in self._plans.all() if plan.profile_of(model) is not None]
        kept = [plan.name for plan in using if plan.origin != AUTO]
        if kept:
            raise Conflict(
                f"model {model} is used by plan{'s' if len(kept) > 1 else ''} {', '.join(kept)}.",
                "Those were made by an operator: delete or save them anew first.",
            )
        for plan in using:
            rest = plan.without_model(model)
            if rest.profiles:
                self._plans.save(rest, f"model {model} is being deleted")
            else:
                self._plans.delete(plan.name, even_default=True)
        return [plan.name for plan in using]

    def _withdraw_adapter(self, record: ModelRecord) -> list[str]:
        changed = []
        for plan in self._plans.all():
            for profile in plan.profiles:
                if any(adapter.name == record.name for adapter in profile.adapters):
                    rest = plan.with_profile(self.with_adapters(profile, without=record.name))
                    self._plans.save(rest, f"adapter {record.name} is being deleted")
                    changed.append(plan.name)
        return changed

    def uncalibrated(self) -> list[str]:
        """Usable devices that nobody has measured and that have memory free for it now, beside what workers hold."""
        found = []
        for budget in budgets_of(self._detect(), self._install, drained=self.drained()):
            needed = _PROBE_BYTES if budget.on_cpu else _DEVICE_PROBE_BYTES
            if budget.usable_bytes >= needed and self._measurements.rates(budget).source != MEASURED:
                found.append(budget.device)
        return found

    def calibrate(
        self, seconds: float, device: str | None = None, cancelled: Callable[[], bool] = never
    ) -> list[DeviceRates]:
        """Measure every usable device, or one, within `seconds` together, and keep the rates.

        Blocks: for about that long; a moment once cancelled() is true.
        Raises: NotFound for a device that is not here; HardwareError when the probe fails; Conflict when cancelled.
        """
        budgets = [b for b in self.planner().budgets if b.unusable is None and device in (None, b.device)]
        if not budgets:
            raise NotFound(
                f"there is no usable device {device!r}.", "`bayard hw` lists what was found.", param="device"
            )
        found = []
        for budget in budgets:
            threads = self._settings.workers.threads or budget.cores
            kinds = kinds_for(budget.on_cpu, self._kinds_of_models(budget.on_cpu))
            rates = measure(budget, threads, seconds / len(budgets), kinds, cancelled)
            self._measurements.save_rates(rates)
            read = f"reads {rates.read_bytes_per_s / 1e9:.1f} GB/s, {rates.flops / 1e9:,.0f} GFLOP/s"
            if rates.links is not None:
                read += f", {rates.links}"
            self._events.publish(
                "device", budget.device, "shipped", rates.source, f"calibrated: {read}; {rates.detail}"
            )
            found.append(rates)
        return found

    def note_loaded(self, views: Sequence[WorkerView]) -> None:
        """Keep what workers really hold and how fast they decode, to correct later predictions."""
        self._noting.note(views)

    def _budget_of(self, device: str) -> DeviceBudget | None:
        found = budgets_of(self._detect(), self._install)
        return next((budget for budget in found if budget.device == device and budget.unusable is None), None)

    def _kinds_of_models(self, on_cpu: bool) -> list[str]:
        """Weight kinds of imported models, as a device would hold them."""
        found: list[str] = []
        for record in self._models.all():
            try:
                spec = self.spec_of(record.name)
            except BayardError:  # a linked file that is gone is for `bayard models verify` to tell
                continue
            traffic = traffic_of(loaded_spec(spec, on_cpu=on_cpu))
            found += [share.kind for share in (*traffic.dense, *traffic.experts)]
        return found


def _chosen(answer: PlanAnswer) -> Profile:
    if answer.chosen is not None:
        return answer.chosen
    first = answer.why_not[0] if answer.why_not else None
    reason = "no device was found" if first is None else f"{first.candidate}: {first.reason}"
    nearest = next((w.nearest for w in answer.why_not if w.nearest), "")
    raise DoesNotFit(
        f"{answer.model} cannot run here: {reason}.", f"What would: {nearest}." if nearest else "See `bayard plan`."
    )


def _why_not(model: str, answer: PlanAnswer) -> str:
    reasons = "; ".join(f"{w.candidate}: {w.reason}" for w in answer.why_not[:2])
    return f"model {model} was not added: {reasons}"
