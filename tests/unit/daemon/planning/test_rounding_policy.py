"""Nothing is made less exact than its checkpoint unless the operator, or the operator's setting, says so."""

from __future__ import annotations

import pytest

from daemon.planning.install import EngineInstall
from daemon.planning.machine_budgets import budgets_of
from daemon.planning.plan import Planner, Request
from daemon.planning.precisions import WhenToRound
from daemon.planning.profile import PlanAnswer
from daemon.planning.strategy import Strategy
from hwdetect.machine import Machine
from tests.fakes.planned_models import cpu_machine, gpu, gpu_machine
from tests.fakes.public_models import public_models

MODEL = public_models()["qwen2.5-14b"]
SMALL_CARD = gpu_machine(gpu("NVIDIA GeForce RTX 4090", 24.0), host_gib=16)
PRICE = "int8 beside stored: perplexity +0.10%"
PRICES = {"int8": PRICE, "stored+kv-int8": "stored+kv-int8 beside stored: perplexity +0.02%"}


def ask(machine: Machine, rounding: WhenToRound, strategy: Strategy = Strategy.LATENCY, **asked: str) -> PlanAnswer:
    budgets = budgets_of(machine, EngineInstall.full(), idle=True)
    planner = Planner(budgets, rounding=rounding, price=lambda model, form: PRICES.get(form))
    return planner.answer(MODEL, Request(strategy, weights=asked.get("weights"), kv_dtype=asked.get("kv")))


def test_where_only_a_rounded_one_fits_the_answer_is_no_and_names_what_to_ask_for() -> None:
    found = ask(SMALL_CARD, WhenToRound.ASKED)
    assert found.chosen is None
    rounded = [refused for refused in found.why_not if "less exact than the checkpoint" in refused.reason]
    assert {refused.nearest for refused in rounded} >= {"plan it with --weights int8", "plan it with --weights int4"}
    assert found.why_not[0] in rounded, "the nearest change comes first"
    asked = ask(SMALL_CARD, WhenToRound.ASKED, weights="int8")
    assert asked.chosen is not None
    assert asked.chosen.weights == "int8"


def test_setting_takes_the_most_exact_that_fits_and_the_reason_has_its_price() -> None:
    chosen = ask(SMALL_CARD, WhenToRound.TO_FIT).chosen
    assert chosen is not None
    assert chosen.weights in ("fp8", "int8")
    (why,) = [choice.reason for choice in chosen.choices if choice.topic == "accuracy"]
    assert "nothing more exact fits" in why
    assert (PRICE in why) == (chosen.weights == "int8")
    assert ask(SMALL_CARD, WhenToRound.TO_FIT, Strategy.QUALITY).chosen is None


@pytest.mark.parametrize("rounding", WhenToRound)
def test_what_fits_as_stored_is_never_rounded_however_much_faster_that_were(rounding: WhenToRound) -> None:
    for machine in (gpu_machine(gpu("NVIDIA H200", 140.4), host_gib=512), cpu_machine(512, cores=64)):
        for strategy in Strategy:
            chosen = ask(machine, rounding, strategy).chosen
            assert chosen is not None
            assert chosen.weights == "stored"
            assert chosen.kv_dtype in ("bfloat16", "float16", "float32")


def test_rounding_that_was_asked_for_wins_over_the_strategy_quality_and_that_is_said() -> None:
    for asked in ({"weights": "int8"}, {"kv": "int8"}, {"weights": "int8", "kv": "int8"}):
        chosen = ask(cpu_machine(512, cores=64), WhenToRound.ASKED, Strategy.QUALITY, **asked).chosen
        assert chosen is not None
        (told,) = [choice for choice in chosen.choices if choice.topic == "accuracy"]
        assert told.value == " ".join(f"--{option} int8" for option in asked)
        assert "that wins" in told.reason
    for strategy, asked in ((Strategy.QUALITY, {}), (Strategy.LATENCY, {"weights": "int8"})):
        chosen = ask(cpu_machine(512, cores=64), WhenToRound.ASKED, strategy, **asked).chosen
        assert chosen is not None
        assert not [choice for choice in chosen.choices if choice.topic == "accuracy"]


def test_rounded_candidates_tell_their_price_and_how_they_are_asked_for() -> None:
    found = ask(cpu_machine(512, cores=64), WhenToRound.ASKED)
    (note,) = [candidate.note for candidate in found.candidates if candidate.profile.weights == "int8"]
    assert PRICE in note
    assert "only if asked for: --weights int8" in note


def test_a_cache_of_bytes_tells_its_price() -> None:
    found = ask(cpu_machine(512, cores=64), WhenToRound.ASKED, kv="int8")
    assert found.chosen is not None
    (note,) = [candidate.note for candidate in found.candidates if candidate.profile == found.chosen]
    assert PRICES["stored+kv-int8"] in note
