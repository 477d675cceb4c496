"""The planner on an encoder: weights, a step's texts and no KV, beside whatever else runs."""

from __future__ import annotations

from daemon.planning.install import EngineInstall
from daemon.planning.machine_budgets import budgets_of
from daemon.planning.plan import Planner, Request
from daemon.planning.profile import Profile
from daemon.planning.render import answer_text
from daemon.planning.strategy import Strategy
from daemon.planning.worker_config import same_shape, worker_config
from engine.spec import read_spec
from tests.fakes.encoders import saved_encoder
from tests.fakes.planned_models import cpu_machine

PAIR = (Strategy.LATENCY, Strategy.THROUGHPUT)


def planner() -> Planner:
    return Planner(budgets_of(cpu_machine(64), EngineInstall.full(), {}, idle=True))


def test_plan_of_an_encoder_keeps_no_kv_and_says_so(tmp_path):
    saved_encoder("bert", tmp_path)
    spec = read_spec(tmp_path)
    answer = planner().answer(spec, Request(Strategy.LATENCY))
    profile = answer.chosen
    assert profile is not None
    assert (profile.kv_tokens, profile.generates, profile.context_tokens) == (0, False, 66)
    assert profile.memory.of("KV pages") == 0
    assert profile.memory.of("weights") == 4 * sum(info.num_elements for info in spec.tensors)
    text = answer_text(answer)
    assert "it embeds" in text
    assert "KV pool" not in text.split("why")[1]
    assert Profile.from_json(profile.to_json()) == profile


def test_plans_of_an_encoder_for_two_strategies_differ_in_knobs_alone(tmp_path):
    saved_encoder("bert", tmp_path)
    answers = planner().pair(read_spec(tmp_path), PAIR)
    configs = [worker_config(answers[strategy].chosen) for strategy in PAIR]
    assert same_shape(*configs)
    assert configs[1].knobs.token_budget >= configs[0].knobs.token_budget
