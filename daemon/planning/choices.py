"""The sentence of reason behind each choice of a profile."""

from __future__ import annotations

from dataclasses import replace

from daemon.planning.budget import DeviceBudget
from daemon.planning.profile import Choice, Profile
from daemon.planning.rates import DeviceRates
from daemon.planning.strategy import Goal
from daemon.planning.units import human_bytes, human_rate, human_seconds, human_tokens
from engine.spec.precision import WeightPrecision

EIGHT_BIT_FLOATS = frozenset({"fp8", "F8_E4M3"})


def explain_choices(
    profile: Profile, goal: Goal, budget: DeviceBudget, rates: DeviceRates, wanted_context: int, wanted_pool: int
) -> Profile:
    """The profile with its choices said in words."""
    choices = (
        _device(profile, budget, rates),
        _weights(profile, budget),
        *((_kv(profile),) if profile.generates else ()),
        _context(profile, budget, wanted_context),
        *((_pool(profile, budget, wanted_pool),) if profile.generates else ()),
        *(_streams(profile, goal, budget) if profile.generates else (_texts(profile, goal, budget),)),
        *_guesses(profile),
        *_threads(profile, budget),
    )
    return replace(profile, choices=choices)


ROUNDS = {
    "fp8": "activations of many rows are rounded to 8 bits too, which this device multiplies twice as fast",
    "int8": "activations of many rows are rounded to 8 bits too, but for outlying inputs",
}


def _weights(profile: Profile, budget: DeviceBudget) -> Choice:
    rounds = "" if profile.activation == "exact" else f"; {ROUNDS[profile.activation]}"
    soft = not budget.on_cpu and "fp8" not in budget.capabilities and profile.weight_format in EIGHT_BIT_FLOATS
    if soft:
        reason = "soft FP8: kept in 8 bits and widened to 16 as they are multiplied, as this device has no 8-bit floats"
        asked = "" if profile.weights == WeightPrecision.STORED else f"; rounded to {profile.weights} at load"
        return Choice("weights", profile.weight_format, reason + asked)
    if profile.weights == WeightPrecision.STORED:
        return Choice("weights", profile.weight_format, "as stored in the checkpoint" + rounds)
    reason = f"matrices of layers are rounded to {profile.weights} at load, embeddings stay"
    return Choice("weights", profile.weight_format, reason + rounds)


def _streams(profile: Profile, goal: Goal, budget: DeviceBudget) -> tuple[Choice, ...]:
    return (
        Choice(
            "streams in a step",
            f"{profile.knobs.max_running:,}",
            f"{goal.meaning}: {human_rate(profile.speed.batch_tok_s)} tok/s together, "
            f"{human_rate(profile.speed.decode_tok_s)} alone",
        ),
        Choice(
            "prompt chunk",
            f"{profile.knobs.prefill_chunk:,} tokens",
            f"the longest whose step is to end within {human_seconds(goal.step_target_s(budget.on_cpu))}, "
            "so that running streams do not pause longer",
        ),
    )


def _guesses(profile: Profile) -> tuple[Choice, ...]:
    """Nothing where none are made."""
    count = profile.knobs.speculation_tokens
    if not count:
        return ()
    reason = "few streams leave arithmetic to check them; text is the same, and where they do not pay none are made"
    return (Choice("guessed tokens", f"up to {count} a step", reason),)


def _texts(profile: Profile, goal: Goal, budget: DeviceBudget) -> Choice:
    return Choice(
        "texts in a step",
        f"{profile.knobs.max_running:,} of {profile.knobs.token_budget:,} tokens",
        f"as many as are to be embedded within {human_seconds(goal.step_target_s(budget.on_cpu))}, "
        "so that a text that comes meanwhile does not wait longer; nothing is kept between steps",
    )


def _device(profile: Profile, budget: DeviceBudget, rates: DeviceRates) -> Choice:
    reads = f"reads {rates.read_bytes_per_s / 1e9:,.0f} GB/s ({rates.source})"
    room = f"{human_bytes(profile.memory.total_bytes)} of {human_bytes(budget.usable_bytes)} usable"
    return Choice("device", f"{budget.name} ({budget.device})", f"{room}, limited by {budget.limited_by}; {reads}")


def _kv(profile: Profile) -> Choice:
    per_token = human_bytes(profile.memory.kv_bytes_per_token)
    if profile.kv_dtype == profile.dtype:
        return Choice("KV cache", profile.kv_dtype, f"as precise as the activations, {per_token} a token")
    return Choice("KV cache", profile.kv_dtype, f"half the size of {profile.dtype}, {per_token} a token")


def _context(profile: Profile, budget: DeviceBudget, wanted: int) -> Choice:
    value = f"{human_tokens(profile.context_tokens)} tokens"
    if profile.context_tokens < wanted:
        return Choice(
            "context",
            value,
            f"{human_tokens(wanted)} would need "
            f"{human_bytes((wanted - profile.context_tokens) * profile.memory.kv_bytes_per_token)} more KV memory "
            f"than {budget.limited_by} leaves",
        )
    return Choice("context", value, "what was asked for, or the most that the model and the strategy ask")


def _pool(profile: Profile, budget: DeviceBudget, wanted: int) -> Choice:
    value = f"{human_tokens(profile.kv_tokens)} tokens"
    fills = profile.kv_tokens / profile.context_tokens
    streams = f"{fills:,.0f} full contexts" if fills >= 2 else "one full context"
    size = human_bytes(profile.memory.of("KV pages"))
    if profile.kv_tokens < wanted:
        return Choice("KV pool", value, f"{size}, {streams}: all that {budget.limited_by} leaves for it")
    if profile.kv_tokens > wanted:
        reason = (
            f"{size}, {streams}: as another plan needs in the same worker; this one alone takes {human_tokens(wanted)}"
        )
        return Choice("KV pool", value, reason)
    return Choice("KV pool", value, f"{size}, room for {streams} or {profile.users:,} streams of typical length")


def _threads(profile: Profile, budget: DeviceBudget) -> tuple[Choice, ...]:
    if not budget.on_cpu:
        return ()
    if profile.threads == budget.cores:
        return (Choice("threads", f"{profile.threads}", "every physical core this process may use"),)
    return (Choice("threads", f"{profile.threads}", f"set by the operator; {budget.cores} cores could be used"),)
