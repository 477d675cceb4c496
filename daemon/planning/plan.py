"""The planner: Machine x ModelSpec x strategy -> candidates, one chosen profile, and a why-not for each that fails."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from daemon.planning.alike import Alike
from daemon.planning.budget import DeviceBudget
from daemon.planning.choices import explain_choices
from daemon.planning.datasheet import shipped_rates
from daemon.planning.fit import FitModel
from daemon.planning.forms import PAGE_TOKENS, Form, Forms, activation_dtype, activation_of
from daemon.planning.kv_bytes import element_bytes
from daemon.planning.kv_precision import offered_kv
from daemon.planning.merit import merit
from daemon.planning.pace import Pace, as_measured
from daemon.planning.precisions import (
    WORTH,
    WhenToRound,
    against_strategy,
    is_rounding,
    offered_precisions,
    only_if_asked,
    rounding_note,
)
from daemon.planning.profile import Candidate, Choice, PlanAnswer, Profile, WhyNot
from daemon.planning.rates import DeviceRates
from daemon.planning.request import Request as Request
from daemon.planning.request import check
from daemon.planning.speed import SpeedModel
from daemon.planning.strategy import GOALS, Goal, Strategy
from daemon.planning.traffic import Traffic, traffic_of
from daemon.planning.units import human_bytes, human_tokens
from daemon.planning.whynot import beyond_this_version, does_not_fit
from engine.messages import Knobs
from engine.spec.model_spec import ModelSpec
from engine.spec.precision import WeightPrecision

SMALLEST_CONTEXT_TOKENS = 1024
# A CPU's memory also holds everything else on the box; a pool takes no more than this of what is left, unless asked.
_HOST_POOL_SHARE = 0.5
_CHUNK_MIN_TOKENS = 32
_TEXTS_AT_ONCE = 64
_SWAP_MOST_BYTES = 8 << 30  # and no more than a quarter of free host memory
_AHEAD_TOKENS = 256  # an answer's usual length: admissions leave room for as much of everybody's


@dataclass(frozen=True, slots=True)
class Planner:
    """Answers for one set of budgets. `rates` gives a device's rates; `correction` a model's measured memory error."""

    budgets: Sequence[DeviceBudget]
    rates: Callable[[DeviceBudget], DeviceRates] = shipped_rates
    correction: Callable[[str, str, str], int] = lambda model, device, weights: 0
    threads: int = 0  # operator's setting; 0: every core
    rounding: WhenToRound = WhenToRound.ASKED  # operator's setting
    price: Callable[[str, str], str | None] = lambda model, weights: None  # of a precision, in words, if measured
    pace: Callable[[str, str, str], Pace | None] = lambda model, device, weights: None  # as it was seen to run here

    def answer(self, spec: ModelSpec, request: Request) -> PlanAnswer:
        """Rank what would run and say why the rest would not.

        Raises: InvalidParameter for a context beyond the model's or a count below one.
        """
        check(spec, request)
        forms = Forms(spec)
        candidates: list[Candidate] = []
        why_not: list[WhyNot] = []
        alike = Alike(self.budgets)
        for budget in self.budgets:
            if budget.unusable is not None:
                why_not.append(WhyNot(f"on {budget.name} ({budget.device})", budget.unusable, None, None, ""))
                continue
            if request.device not in (None, budget.device) or (request.device is None and alike.is_told(budget)):
                continue
            for precision in offered_precisions(spec, budget, request.strategy, request.weights):
                held = forms.of(precision, budget)
                asked = replace(request, weights=precision)
                for kv_dtype in offered_kv(spec, budget, request.strategy, request.kv_dtype):
                    attempt = _Attempt(self, held, budget, asked, kv_dtype)
                    profile = attempt.solve()
                    if profile is None:
                        why_not.append(does_not_fit(attempt.fit(), budget, attempt.knobs(), *attempt.smallest()))
                        continue
                    price = self.price(spec.name, precision)
                    cache_price = self.price(spec.name, f"{WeightPrecision.STORED}+kv-{profile.kv_dtype}")
                    rounded = rounding_note(spec, profile, request.weights, price, cache_price)
                    told = (attempt.note(profile), rounded, alike.note(budget))
                    note = "; ".join(filter(None, told if request.device is None else told[:2]))
                    score = merit(profile, attempt.goal)
                    if request.weights is None:
                        score *= WORTH[precision]
                    candidates.append(Candidate(profile, score, note))
        ranked = sorted(candidates, key=lambda one: (_rounds(one, request), -one.score))
        chosen = self._chosen(ranked, request)
        if chosen is None and ranked:
            why_not[:0] = only_if_asked(ranked, self.budgets)
        if chosen is None or (chosen.device == "cpu" and len(self.budgets) > 1):  # no accelerator holds it
            why_not.extend(beyond_this_version(spec, traffic_of(spec), self.budgets))
        return PlanAnswer(
            model=spec.name,
            strategy=request.strategy,
            chosen=chosen,
            candidates=tuple(ranked),
            why_not=tuple(why_not),
            notes=_notes(self.budgets, chosen),
            budgets=tuple(self.budgets),
        )

    def _chosen(self, ranked: Sequence[Candidate], request: Request) -> Profile | None:
        """The best, unless it rounds what nobody wanted rounded."""
        if not ranked or (_rounds(ranked[0], request) and self.rounding is WhenToRound.ASKED):
            return None
        best = ranked[0].profile
        if not _rounds(ranked[0], request):
            return replace(best, choices=(*best.choices, *against_strategy(best)))
        why = f"nothing more exact fits, and workers.round_weights is {self.rounding}; {ranked[0].note}"
        return replace(best, choices=(*best.choices, Choice("accuracy", best.weights, why)))

    def pair(self, spec: ModelSpec, strategies: Iterable[Strategy]) -> dict[Strategy, PlanAnswer]:
        """Answers that share context, pool and precision, so that going from one to another moves knobs alone."""
        wanted = list(strategies)
        first = {strategy: self.answer(spec, Request(strategy)) for strategy in wanted}
        profiles = [answer.chosen for answer in first.values() if answer.chosen is not None]
        if len(profiles) < len(wanted):
            return first
        context = min(profile.context_tokens for profile in profiles)
        # The widest pool that any of them wants is tried first; the narrowest is one that all have room for.
        for like in sorted(profiles, key=lambda profile: -profile.kv_tokens):
            shared = {
                strategy: self.answer(
                    spec,
                    Request(
                        strategy,
                        context,
                        None,
                        like.kv_dtype,
                        kv_tokens=like.kv_tokens,
                        device=like.device,
                        weights=like.weights,
                    ),
                )
                for strategy in wanted
            }
            if all(answer.chosen is not None for answer in shared.values()):
                return shared
        return first


@dataclass(slots=True)
class _Attempt:
    """One device with one KV precision."""

    planner: Planner
    form: Form
    budget: DeviceBudget
    request: Request
    kv_dtype: str

    @property
    def spec(self) -> ModelSpec:
        return self.form.spec

    @property
    def traffic(self) -> Traffic:
        return self.form.traffic

    @property
    def goal(self) -> Goal:
        return GOALS[self.request.strategy]

    @property
    def users(self) -> int:
        return self.request.users or self.goal.users(self.budget.on_cpu)

    def fit(self) -> FitModel:
        return FitModel(
            self.spec,
            self.traffic,
            self.budget.on_cpu,
            activation_dtype(self.budget),
            self.kv_dtype,
            PAGE_TOKENS,
            self.planner.correction(self.spec.name, self.budget.device, self.request.precision),
            self.form.weights,
        )

    def speed(self) -> SpeedModel:
        return SpeedModel(
            self.spec, self.traffic, self.planner.rates(self.budget), element_bytes(self.spec, self.kv_dtype)
        )

    def knobs(self) -> Knobs:
        """Batch and chunk from the roofline: the largest chunk whose step keeps within the strategy's pause."""
        target_s = self.goal.step_target_s(self.budget.on_cpu)
        largest = max(_CHUNK_MIN_TOKENS, min(self.goal.chunk_max_tokens, self.spec.max_context_tokens))
        if self.spec.is_encoder:  # a step is a batch of texts; the budget is what bounds it
            chunk = self.speed().chunk_for(target_s, 0, _CHUNK_MIN_TOKENS, self.goal.chunk_max_tokens)
            return Knobs(max_running=max(self.users, _TEXTS_AT_ONCE), token_budget=chunk, prefill_chunk=chunk)
        chunk = self.speed().chunk_for(target_s, self.users, _CHUNK_MIN_TOKENS, largest)
        return Knobs(
            max_running=self.users,
            token_budget=self.users + chunk,
            prefill_chunk=chunk,
            prefix_cache=True,
            ahead_tokens=_AHEAD_TOKENS,
            speculation_tokens=self.goal.guessed_tokens,
            max_step_ms=round(target_s * 1e3, 1),  # holds where the roofline promised too much
        )

    def wanted_context(self) -> int:
        if self.request.context_tokens is not None:
            return self.request.context_tokens
        cap = self.goal.context_cap_tokens
        return self.spec.max_context_tokens if cap is None else min(cap, self.spec.max_context_tokens)

    def wanted_pool(self, context: int) -> int:
        """Tokens of KV to set aside: those of a pool to be shared, else what this one's users need."""
        return self.own_pool(context) if self.request.kv_tokens is None else self.request.kv_tokens

    def own_pool(self, context: int) -> int:
        """Tokens of KV that the users need; both numbers given are a promise, else a stream is typically shorter."""
        promised = self.request.context_tokens is not None and self.request.users is not None
        fill = 1.0 if promised else self.goal.mean_fill
        return _whole_pages(max(context, int(self.users * context * fill)))

    def smallest(self) -> tuple[int, int]:
        """(context, pool) below which the request is not met."""
        if self.request.context_tokens is not None:
            context = self.request.context_tokens
            promised = self.request.users is not None or self.request.kv_tokens is not None
            return context, self.wanted_pool(context) if promised else _whole_pages(context)
        context = min(self.wanted_context(), SMALLEST_CONTEXT_TOKENS)
        return context, _whole_pages(context)

    def room(self, knobs: Knobs) -> int:
        """Tokens of KV that may be taken here."""
        fit = self.fit()
        most = fit.kv_tokens_within(self.budget.usable_bytes, knobs)
        if self.budget.on_cpu and self.request.users is None:
            return max(min(most, self.smallest()[1]), int(most * _HOST_POOL_SHARE))
        return most

    def solve(self) -> Profile | None:
        """The nearest to what was wanted that fits: first a smaller pool, then a shorter context."""
        knobs = self.knobs()
        if self.spec.is_encoder:
            fits = self.fit().fixed_bytes(knobs) <= self.budget.usable_bytes
            return self._profile(self.wanted_context(), 0, knobs) if fits else None
        room = self.room(knobs)
        least_context, least_pool = self.smallest()
        if room < least_pool:
            return None
        context = self.wanted_context()
        while context > least_context and room < _whole_pages(context):
            context = max(least_context, context // 2)
        pool = min(self.wanted_pool(context), room // PAGE_TOKENS * PAGE_TOKENS)
        return self._profile(context, pool, knobs)

    def _profile(self, context: int, pool: int, knobs: Knobs) -> Profile:
        fit = self.fit()
        rates = self.planner.rates(self.budget)
        pace = self.planner.pace(self.spec.name, self.budget.device, self.request.precision)
        threads = 0
        if self.budget.on_cpu:
            threads = self.planner.threads or max(1, self.budget.cores)
        profile = Profile(
            model=self.spec.name,
            path=self.spec.path,
            strategy=self.request.strategy,
            device=self.budget.device,
            device_name=self.budget.name,
            weight_format=self.spec.source_dtype,
            dtype=fit.dtype,
            kv_dtype=self.kv_dtype,
            context_tokens=context,
            users=self.users,
            kv_tokens=pool,
            page_tokens=PAGE_TOKENS,
            threads=threads,
            knobs=knobs,
            memory=fit.estimate(knobs, pool),
            speed=self.speed().estimate(knobs, context),
            generates=self.spec.generates,
            weights=self.request.precision,
            activation=activation_of(self.spec, self.request.precision, self.budget),
            swap_bytes=self.swap_bytes(),
        )
        wanted = self.wanted_context(), self.own_pool(context)
        return as_measured(pace, profile, lambda known: explain_choices(known, self.goal, self.budget, rates, *wanted))

    def swap_bytes(self) -> int:
        """Host memory for the pages of preempted requests; a CPU has no second place for them."""
        host = next((budget for budget in self.planner.budgets if budget.on_cpu), None)
        if self.budget.on_cpu or host is None or self.spec.is_encoder:
            return 0
        return min(_SWAP_MOST_BYTES, host.usable_bytes // 4) >> 30 << 30

    def note(self, profile: Profile) -> str:
        if profile.context_tokens < self.wanted_context():
            return f"context cut from {human_tokens(self.wanted_context())} to what fits"
        if self.spec.is_encoder:
            return "embeds alone"
        if profile.kv_tokens < self.wanted_pool(profile.context_tokens):
            return f"room for {human_tokens(profile.kv_tokens)} tokens at once"
        return ""


def _rounds(candidate: Candidate, request: Request) -> bool:
    return is_rounding(candidate.profile, request.weights, request.kv_dtype)


def _whole_pages(tokens: int) -> int:
    return -(-tokens // PAGE_TOKENS) * PAGE_TOKENS


def _notes(budgets: Sequence[DeviceBudget], chosen: Profile | None) -> tuple[str, ...]:
    notes = []
    for budget in budgets:
        if budget.holders and budget.unusable is None:
            notes.append(f"{budget.name} ({budget.device}) is shared with {', '.join(budget.holders)}")
        for claim in budget.claims:
            notes.append(f"{human_bytes(claim.size_bytes)} of {budget.device} belong to {claim.owner}")
    if chosen is not None and chosen.speed.rates_source != "measured":
        notes.append("speeds are from shipped rates; `bayard calibrate` measures this machine in at most 20 s")
    return tuple(notes)
