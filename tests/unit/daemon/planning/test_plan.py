"""The planner: choices with reasons, why-nots with both numbers, monotone in memory."""

from __future__ import annotations

import json
import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.planning.answer_json import answer_from_json, answer_to_json
from daemon.planning.budget import Claim
from daemon.planning.install import EngineInstall
from daemon.planning.machine_budgets import budgets_of
from daemon.planning.plan import Planner, Request
from daemon.planning.profile import PlanAnswer
from daemon.planning.render import answer_text
from daemon.planning.strategy import Strategy
from daemon.planning.worker_config import same_shape, worker_config
from engine.errors import InvalidParameter
from engine.spec import read_spec
from engine.spec.model_spec import ModelSpec
from hwdetect.accelerator import Vendor
from hwdetect.machine import Machine
from tests.fakes.planned_models import GIB, cpu_machine, gpu, gpu_machine, made_spec

SMALL = made_spec("small-1b", kind="Q4_K", tied=True)
LLAMA_8B = made_spec("llama-8b", hidden=4096, layers=32, heads=32, kv_heads=8, head_dim=128, mlp=14_336)
LLAMA_70B = made_spec("llama-70b", hidden=8192, layers=80, heads=64, kv_heads=8, head_dim=128, mlp=28_672)
MOE_671B = made_spec(
    "moe-671b", hidden=7168, layers=61, heads=128, kv_heads=8, head_dim=128, mlp=2048, experts=256, active=8,
    kind="F8_E4M3",
)  # fmt: skip


def planner(machine: Machine, **known: object) -> Planner:
    return Planner(budgets_of(machine, EngineInstall.full(), idle=True, **known))  # type: ignore[arg-type]


def ask(machine: Machine, spec: ModelSpec, strategy: Strategy = Strategy.LATENCY, **asked: int) -> PlanAnswer:
    return planner(machine).answer(spec, Request(strategy, **asked))  # type: ignore[arg-type]


@pytest.mark.parametrize("strategy", list(Strategy))
def test_every_strategy_gives_a_profile_that_fits_with_a_reason_for_each_choice(strategy: Strategy) -> None:
    answer = ask(cpu_machine(24), SMALL, strategy)
    chosen = answer.chosen
    assert chosen is not None
    budget = answer.budgets[0]
    assert chosen.memory.total_bytes <= budget.usable_bytes
    assert chosen.kv_tokens >= chosen.context_tokens
    assert chosen.knobs.token_budget >= chosen.knobs.prefill_chunk
    assert {c.topic for c in chosen.choices} >= {"device", "weights", "KV cache", "context", "KV pool", "threads"}
    assert all(c.reason and c.value for c in chosen.choices)


def test_latency_runs_few_streams_and_throughput_many() -> None:
    few = ask(cpu_machine(24), SMALL, Strategy.LATENCY).chosen
    many = ask(cpu_machine(24), SMALL, Strategy.THROUGHPUT).chosen
    assert few is not None
    assert many is not None
    assert few.knobs.max_running < many.knobs.max_running
    assert few.knobs.prefill_chunk < many.knobs.prefill_chunk
    assert few.speed.batch_tok_s < many.speed.batch_tok_s


def test_quality_keeps_the_cache_as_precise_as_the_activations() -> None:
    answer = ask(cpu_machine(24), SMALL, Strategy.QUALITY)
    assert {c.profile.kv_dtype for c in answer.candidates} == {"float32"}


def test_long_context_takes_all_the_model_was_made_for() -> None:
    chosen = ask(cpu_machine(64), SMALL, Strategy.LONG_CONTEXT).chosen
    assert chosen is not None
    assert chosen.context_tokens == SMALL.max_context_tokens


def test_pair_differs_in_knobs_alone() -> None:
    answers = planner(cpu_machine(24)).pair(SMALL, (Strategy.LATENCY, Strategy.THROUGHPUT))
    one, other = (worker_config(answers[s].chosen) for s in (Strategy.LATENCY, Strategy.THROUGHPUT))  # type: ignore[arg-type]
    assert same_shape(one, other)
    assert one.knobs != other.knobs


def test_pair_says_that_a_pool_is_wider_than_the_plan_itself_needs() -> None:
    machine, both = cpu_machine(24), (Strategy.LATENCY, Strategy.THROUGHPUT)
    shared = planner(machine).pair(SMALL, both)
    for strategy in both:
        alone, chosen = ask(machine, SMALL, strategy).chosen, shared[strategy].chosen
        assert alone is not None
        assert chosen is not None
        (reason,) = [c.reason for c in chosen.choices if c.topic == "KV pool"]
        assert ("as another plan needs" in reason) == (chosen.kv_tokens > alone.kv_tokens)
    assert shared[Strategy.LATENCY].chosen.kv_tokens > ask(machine, SMALL).chosen.kv_tokens  # type: ignore[union-attr]


@pytest.mark.parametrize("total_gib", [2.0, 2.5, 3.0, 6.0, 24.0])
def test_pair_keeps_one_shape_where_memory_is_short(total_gib: float) -> None:
    answers = planner(cpu_machine(total_gib)).pair(SMALL, (Strategy.LATENCY, Strategy.THROUGHPUT))
    profiles = [answer.chosen for answer in answers.values()]
    assert all(profile is not None for profile in profiles)
    assert same_shape(worker_config(profiles[0]), worker_config(profiles[1]))  # type: ignore[arg-type]


def test_context_is_cut_to_what_fits_and_says_so() -> None:
    wide, narrow = ask(cpu_machine(64), SMALL).chosen, ask(cpu_machine(2.4), SMALL).chosen
    assert wide is not None
    assert narrow is not None
    assert narrow.context_tokens < wide.context_tokens
    (reason,) = [c.reason for c in narrow.choices if c.topic == "context"]
    assert "would need" in reason


def test_context_asked_for_is_kept_or_refused_never_cut() -> None:
    answer = ask(cpu_machine(2.4), SMALL, context_tokens=131_072)
    assert answer.chosen is None
    (refused,) = answer.why_not
    assert refused.need_bytes is not None
    assert refused.have_bytes is not None
    assert refused.need_bytes > refused.have_bytes > 0
    assert "a context of" in refused.nearest


def test_nearest_change_is_true() -> None:
    """What a why-not names is asked for, and fits."""
    short = ask(cpu_machine(2.4), SMALL, context_tokens=131_072)
    words = short.why_not[0].nearest.split()
    context = int(words[3].replace(",", "").replace("k", "")) * (1024 if "k" in words[3] else 1)
    assert ask(cpu_machine(2.4), SMALL, context_tokens=context).chosen is not None
    crowd = ask(cpu_machine(8), SMALL, context_tokens=16_384, users=500)
    users = int(crowd.why_not[0].nearest.split()[0].replace(",", ""))
    assert ask(cpu_machine(8), SMALL, context_tokens=16_384, users=users).chosen is not None
    assert ask(cpu_machine(8), SMALL, context_tokens=16_384, users=users * 3).chosen is None


def test_model_too_large_names_4_bit_or_the_missing_memory() -> None:
    assert "plan it with --weights int" in ask(cpu_machine(12), LLAMA_8B).why_not[0].nearest
    assert any("4-bit weights fit" in w.nearest for w in ask(cpu_machine(12), LLAMA_8B).why_not)
    assert "more on Some CPU" in ask(cpu_machine(3), LLAMA_8B).why_not[0].nearest


def test_several_gpus_and_host_experts_are_named_but_not_promised() -> None:
    eight = gpu_machine(*[gpu("NVIDIA H200", 140) for _ in range(8)], host_gib=64)
    answer = ask(eight, MOE_671B)
    assert answer.chosen is None
    assert any("spread over 8 x NVIDIA H200" in w.candidate for w in answer.why_not)
    one = ask(gpu_machine(gpu("NVIDIA H200", 140), host_gib=1024), MOE_671B, Strategy.LATENCY)
    if one.chosen is not None:
        assert one.chosen.device == "cpu"
    lone = ask(gpu_machine(gpu("NVIDIA H200", 140), host_gib=700), MOE_671B)
    beyond = [w for w in lone.why_not if "experts in host memory" in w.candidate]
    assert lone.chosen is not None or beyond


def test_gpu_is_preferred_and_a_foreign_vendor_says_why_not() -> None:
    machine = gpu_machine(gpu("NVIDIA H200", 140), gpu("910B3", 64, vendor=Vendor.ASCEND))
    answer = ask(machine, LLAMA_8B)
    assert answer.chosen is not None
    assert answer.chosen.device == "cuda:0"
    assert answer.chosen.dtype == "bfloat16"
    assert any("ascend" in w.reason for w in answer.why_not)
    assert {c.profile.device for c in answer.candidates} == {"cuda:0", "cpu"}


def test_claims_of_another_model_are_taken_off_and_noted() -> None:
    alone = ask(cpu_machine(24), LLAMA_8B).chosen
    beside = planner(cpu_machine(24), claims={"cpu": [Claim("other", 5 * GIB)]}).answer(
        LLAMA_8B, Request(Strategy.LATENCY)
    )
    assert alone is not None
    assert beside.chosen is None or beside.chosen.kv_tokens < alone.kv_tokens
    assert any("belong to other" in note for note in beside.notes)


@pytest.mark.parametrize(("asked", "param"), [({"context_tokens": 200_000}, "context"), ({"users": 0}, "users")])
def test_impossible_request_is_refused_with_both_numbers(asked: dict[str, int], param: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        ask(cpu_machine(24), SMALL, **asked)
    assert caught.value.param == param


def test_answer_survives_json_and_prints(smollm_path: Path) -> None:
    answer = ask(cpu_machine(24), read_spec(smollm_path), Strategy.THROUGHPUT)
    told = json.loads(json.dumps(answer_to_json(answer)))
    assert answer_from_json(told) == answer
    assert told["fits"] is True
    text = answer_text(answer)
    assert "yes, on Some CPU" in text
    assert "memory of Some CPU" in text
    refused = answer_text(ask(cpu_machine(1), LLAMA_8B))
    assert "no, it does not run here" in refused
    assert "Nearest:" in refused


def test_plan_of_a_70b_description_takes_a_fraction_of_a_second() -> None:
    machine = gpu_machine(*[gpu("NVIDIA H200", 140) for _ in range(8)], host_gib=1024)
    began = time.process_time()
    ask(machine, LLAMA_70B)
    assert time.process_time() - began < 0.5


@given(st.floats(0.5, 64), st.floats(0, 64), st.sampled_from(list(Strategy)))
@settings(max_examples=60, deadline=None)
def test_more_memory_never_gives_less(total_gib: float, more_gib: float, strategy: Strategy) -> None:
    """Fits are monotone: whatever runs on a machine runs on one with more memory, with at least the same context."""
    one = ask(cpu_machine(total_gib), SMALL, strategy).chosen
    other = ask(cpu_machine(total_gib + more_gib), SMALL, strategy).chosen
    if one is not None:
        assert other is not None
        assert other.context_tokens >= one.context_tokens


@pytest.mark.parametrize("spec", [SMALL, LLAMA_8B, LLAMA_70B])
def test_smallest_machine_that_fits_is_a_sharp_edge(spec: ModelSpec) -> None:
    fits = [ask(gpu_machine(gpu("NVIDIA H200", g), host_gib=1), spec).chosen is not None for g in range(1, 200, 2)]
    assert sorted(fits) == fits
    assert any(fits)
    assert not all(fits)


GOLDEN_MACHINES = {
    "H200": (gpu("NVIDIA H200", 140), 1024),
    "H20": (gpu("NVIDIA H20", 96), 1024),
    "A800": (gpu("NVIDIA A800-SXM4-80GB", 80), 512),
    "4090": (gpu("NVIDIA GeForce RTX 4090", 24), 64),
    "GB10": (gpu("NVIDIA GB10", 119), 8),
}


def test_faster_devices_are_predicted_faster_in_the_order_of_their_bandwidth() -> None:
    speeds = {}
    for name in ("H200", "H20", "A800", "GB10"):
        card, host_gib = GOLDEN_MACHINES[name]
        chosen = ask(gpu_machine(card, host_gib=host_gib), LLAMA_8B).chosen
        assert chosen is not None
        assert chosen.device == "cuda:0"
        speeds[name] = chosen.speed.decode_tok_s
    assert all(faster > slower for faster, slower in pairwise(speeds.values()))
    assert 150 < speeds["H200"] < 260
    assert 8 < speeds["GB10"] < 20
