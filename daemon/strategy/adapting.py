"""Adapting: lets measured load move the knobs of a plan's workers, between ends that the planner works out."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from daemon.planning.live_bounds import LiveBounds
from daemon.planning.plan import Request
from daemon.planning.profile import Profile
from daemon.planning.strategy import Strategy
from daemon.strategy.desk import PlanningDesk
from daemon.strategy.plans import Plans, SavedPlan
from engine.errors import InvalidParameter
from engine.messages import Knobs


def adapt(
    desk: PlanningDesk,
    plans: Plans,
    name: str,
    *,
    on: bool,
    least_streams: int | None = None,
    most_streams: int | None = None,
    dwell_s: float | None = None,
) -> SavedPlan:
    """Switch a plan's following of the load on or off. The shape stays: a running worker is not interrupted.

    least_streams, most_streams: how far the ends may go; None: as far as the latency and the throughput strategy go.
    Blocks: reads headers, hardware and store.
    Raises: NotFound, InvalidParameter
    """
    plan = plans.get(name)
    if not on:
        fixed = tuple(replace(profile, bounds=None) for profile in plan.profiles)
        return plans.save(replace(plan, profiles=fixed), "load moves no knobs any more")
    profiles = []
    for profile in plan.profiles:
        others = [other for other in plan.profiles if other.model != profile.model]
        if profile.generates:
            profile = _bounded(desk, profile, others, least_streams, most_streams, dwell_s)
        profiles.append(profile)
    return plans.save(replace(plan, profiles=tuple(profiles)), "load may move the knobs")


def _bounded(
    desk: PlanningDesk,
    profile: Profile,
    others: list[Profile],
    least_streams: int | None,
    most_streams: int | None,
    dwell_s: float | None,
) -> Profile:
    planner, spec = desk.planner(beside=others), desk.spec_of(profile.model)
    ends: dict[Strategy, Profile] = {}
    for strategy in (Strategy.LATENCY, Strategy.THROUGHPUT):
        request = Request(
            strategy,
            profile.context_tokens,
            None,
            profile.kv_dtype,
            kv_tokens=profile.kv_tokens,
            device=profile.device,
            weights=profile.weights,
        )
        # an end that has no room in this plan's pool is where the plan itself stands
        ends[strategy] = planner.answer(spec, request).chosen or profile
    few, many = ends[Strategy.LATENCY].knobs, ends[Strategy.THROUGHPUT].knobs
    if least_streams is not None:
        few = _with_streams(few, least_streams)
    if most_streams is not None:
        many = _with_streams(many, most_streams)
        if many.max_running > ends[Strategy.THROUGHPUT].knobs.max_running:
            raise InvalidParameter(
                f"{most_streams:,} streams are more than the {ends[Strategy.THROUGHPUT].knobs.max_running:,} that "
                f"{profile.model} has memory planned for.",
                "Save the plan with --users first.",
                param="streams",
            )
    bounds = LiveBounds(few, many) if dwell_s is None else LiveBounds(few, many, dwell_s)
    bounds.check()
    widest = max((profile, *ends.values()), key=lambda end: end.memory.total_bytes)
    return replace(profile, bounds=bounds, memory=widest.memory).with_adapters(profile.adapters)


def _with_streams(knobs: Knobs, streams: int) -> Knobs:
    prompts = max(1, knobs.token_budget - knobs.max_running)
    return msgspec.structs.replace(knobs, max_running=streams, token_budget=streams + prompts)
