"""Recorded machines times well-known models: a golden table, checked for sense.

$BAYARD_WRITE_GOLDEN=1 writes the table anew; look at the difference before it is committed.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from daemon.planning.budget import DeviceBudget
from daemon.planning.datasheet import shipped_rates
from daemon.planning.install import EngineInstall
from daemon.planning.layouts import layouts_of
from daemon.planning.machine_budgets import budgets_of
from daemon.planning.plan import Planner, Request
from daemon.planning.profile import PlanAnswer
from daemon.planning.rates import DeviceRates
from daemon.planning.strategy import Strategy
from daemon.planning.worker_config import worker_config
from hwdetect.accelerator import Capabilities, Vendor
from hwdetect.machine import Machine
from tests.fakes.planned_models import cpu_machine, gpu, gpu_machine
from tests.fakes.public_models import public_models

GOLDEN = Path(__file__).parent / "golden_plans.json"
MODELS = public_models()
NO_FP8 = Capabilities(bf16=True, fp8=False, triton=True, graphs=True)
MACHINES: dict[str, Machine] = {
    "8 x H20": gpu_machine(*[gpu("NVIDIA H20", 95.6)] * 8, host_gib=2000),
    "1 x H200": gpu_machine(gpu("NVIDIA H200", 140.4), host_gib=1000),
    "8 x A800": gpu_machine(*[gpu("NVIDIA A800-SXM4-80GB", 80.0, capabilities=NO_FP8)] * 8, host_gib=1000),
    "8 x 910B": gpu_machine(*[gpu("910B3", 64.0, vendor=Vendor.ASCEND, capabilities=NO_FP8)] * 8, host_gib=1500),
    "1 x MTT S4000": gpu_machine(gpu("MTT S4000", 48.0, vendor=Vendor.MTHREADS, capabilities=NO_FP8), host_gib=256),
    "1 x 4090": gpu_machine(gpu("NVIDIA GeForce RTX 4090", 24.0), host_gib=64),
    "GB10": gpu_machine(gpu("NVIDIA GB10", 119.7), host_gib=119.7),
    "CPU only": cpu_machine(512, cores=64),
}


def answer(machine: Machine, model: str, **asked: Any) -> PlanAnswer:
    budgets = budgets_of(machine, EngineInstall.full(), idle=True)
    return Planner(budgets).answer(MODELS[model], Request(asked.pop("strategy", Strategy.LATENCY), **asked))


@pytest.fixture(scope="module")
def answers() -> dict[str, dict[str, PlanAnswer]]:
    return {name: {model: answer(machine, model) for model in MODELS} for name, machine in MACHINES.items()}


def row(found: PlanAnswer) -> dict[str, Any]:
    chosen = found.chosen
    if chosen is None:
        return {"fits": False, "named": sorted({w.nearest for w in found.why_not if "version" in w.nearest})}
    return {
        "fits": True,
        "device": chosen.device,
        "weights": chosen.weights,
        "context": chosen.context_tokens,
        "memory_gib": round(chosen.memory.total_bytes / 2**30, 1),
        "decode_tok_s": float(f"{chosen.speed.decode_tok_s:.3g}"),
    }


def test_table_is_as_it_was_written(answers: dict[str, dict[str, PlanAnswer]]) -> None:
    table = {name: {model: row(found) for model, found in rows.items()} for name, rows in answers.items()}
    if os.environ.get("BAYARD_WRITE_GOLDEN"):
        GOLDEN.write_text(json.dumps(table, indent=1) + "\n")
    golden = json.loads(GOLDEN.read_text())
    assert table.keys() == golden.keys()
    for name, rows in table.items():
        assert rows == golden[name], name


def test_what_is_offered_fits_and_what_is_refused_says_by_how_much(answers: dict[str, dict[str, PlanAnswer]]) -> None:
    for rows in answers.values():
        for found in rows.values():
            for candidate in found.candidates:
                budget = next(b for b in found.budgets if b.device == candidate.profile.device)
                assert candidate.profile.memory.total_bytes <= budget.usable_bytes
                assert budget.unusable is None
            for refused in found.why_not:
                assert refused.reason
                if refused.need_bytes is not None and refused.have_bytes is not None:
                    assert refused.need_bytes > refused.have_bytes or "this version" in refused.reason
                    assert refused.nearest


def test_smaller_models_of_one_kind_fit_where_larger_do(answers: dict[str, dict[str, PlanAnswer]]) -> None:
    dense = ["llama-3.2-1b", "llama-3.2-3b", "llama-3.1-8b", "qwen2.5-14b", "qwen2.5-32b"]
    for name, rows in answers.items():
        for small, large in pairwise(dense):
            assert rows[small].fits or not rows[large].fits, name


@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen3-30b-a3b", "llama-3.3-70b-fp8"])
def test_fits_and_pools_grow_with_memory(model: str) -> None:
    pools = []
    for gib in (8, 16, 24, 48, 80, 96, 141, 192):
        found = answer(gpu_machine(gpu("NVIDIA H200", gib), host_gib=16), model, device="cuda:0", weights="stored")
        pools.append(0 if found.chosen is None else found.chosen.kv_tokens)
    assert pools == sorted(pools)
    assert pools[0] == 0 < pools[-1]


@pytest.mark.parametrize("model", MODELS)
def test_speed_grows_with_bandwidth(model: str) -> None:
    budgets = budgets_of(gpu_machine(gpu("NVIDIA H200", 2000.0)), EngineInstall.full(), idle=True)[:1]

    def rates(factor: float) -> DeviceRates:
        base = shipped_rates(budgets[0])
        kinds = {k: replace(rate, read_bytes_per_s=rate.read_bytes_per_s * factor) for k, rate in base.kinds.items()}
        return replace(base, read_bytes_per_s=base.read_bytes_per_s * factor, kinds=kinds)

    speeds = []
    for factor in (0.5, 1.0, 2.0, 4.0):

        def of(budget: DeviceBudget, factor: float = factor) -> DeviceRates:
            return rates(factor)

        chosen = Planner(budgets, rates=of).answer(MODELS[model], Request(Strategy.LATENCY, 8192)).chosen
        assert chosen is not None
        speeds.append(chosen.speed.decode_tok_s)
    assert speeds == sorted(speeds)
    assert speeds[-1] > speeds[0]


def test_fp8_checkpoint_is_soft_where_the_device_has_no_8_bit_floats(
    answers: dict[str, dict[str, PlanAnswer]],
) -> None:
    a800 = answer(gpu_machine(gpu("NVIDIA A800-SXM4-80GB", 80.0, capabilities=NO_FP8)), "llama-3.3-70b-fp8")
    for found, soft in ((a800, True), (answers["8 x H20"]["llama-3.3-70b-fp8"], False)):
        assert found.chosen is not None
        assert found.chosen.weight_format == "F8_E4M3"
        weights = next(choice for choice in found.chosen.choices if choice.topic == "weights")
        assert ("soft FP8" in weights.reason) is soft


def test_671b_on_one_accelerator_and_a_terabyte_is_named_and_never_promised(
    answers: dict[str, dict[str, PlanAnswer]],
) -> None:
    found = answers["1 x H200"]["deepseek-v3-671b"]
    assert all(candidate.profile.device == "cpu" for candidate in found.candidates)
    named = next(w for w in found.why_not if "experts in host memory" in w.candidate)
    assert named.nearest == "a version with host experts"
    spread = next(w for w in answers["8 x H20"]["deepseek-v3-671b"].why_not if "spread over" in w.candidate)
    assert "tensor 8 x expert 8 parallel" in spread.nearest


def test_devices_without_an_engine_are_refused_by_name(answers: dict[str, dict[str, PlanAnswer]]) -> None:
    for name in ("8 x 910B", "1 x MTT S4000"):
        reasons = [w.reason for w in answers[name]["llama-3.1-8b"].why_not]
        assert any("no device class" in reason for reason in reasons), name


def test_layouts_divide_heads_layers_and_experts() -> None:
    for model, spec in MODELS.items():
        for devices in (2, 3, 4, 8):
            for layout in layouts_of(spec, devices):
                assert layout.tensor * layout.pipeline == devices, model
                assert all(layer.attention.num_heads % layout.tensor == 0 for layer in spec.layers)
    assert layouts_of(MODELS["qwen2.5-0.5b"], 8)[0].tensor < 8  # fourteen heads


def test_rounding_is_offered_below_what_is_stored_and_taken_only_if_asked_for(
    answers: dict[str, dict[str, PlanAnswer]],
) -> None:
    big = answers["1 x H200"]["qwen2.5-14b"]
    precisions = [c.profile.weights for c in big.candidates if c.profile.device == "cuda:0"]
    assert precisions[0] == "stored"
    assert {"fp8", "int8", "int4"} <= set(precisions)
    small = answers["1 x 4090"]["qwen2.5-14b"]
    on_card = [c.profile for c in small.candidates if c.profile.device == "cuda:0"]
    assert on_card
    assert all(profile.weights != "stored" for profile in on_card)
    assert small.chosen is None or small.chosen.device == "cpu"
    quality = answer(MACHINES["1 x H200"], "qwen2.5-14b", strategy=Strategy.QUALITY)
    assert {c.profile.weights for c in quality.candidates} == {"stored"}


def test_preempted_requests_keep_pages_in_host_memory_beside_an_accelerator_alone() -> None:
    on_card, on_cpu = (
        answer(MACHINES["1 x H200"], "llama-3.1-8b").chosen,
        answer(MACHINES["CPU only"], "qwen3-4b").chosen,
    )
    assert on_card is not None
    assert on_cpu is not None
    assert worker_config(on_card).swap_bytes == 8 << 30
    assert worker_config(on_cpu).swap_bytes == 0
