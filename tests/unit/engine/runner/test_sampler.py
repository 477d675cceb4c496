"""Sampling against distributions worked out by hand."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from engine.messages import SamplingParams
from engine.runner.sampler import sample, uniform
from engine.scheduler.request import Request

LOGITS = [2.0, 1.0, 0.5, 0.0, -1.0, -3.0]


def request(seed: int = 0, prompt: tuple[int, ...] = (5,), output: tuple[int, ...] = (), **params: object) -> Request:
    sampling = SamplingParams(max_tokens=10, **params)  # type: ignore[arg-type]
    return Request("r", [*prompt, *output], len(prompt), sampling, seed, 0, 0, pages=None)  # type: ignore[arg-type]


def draw(count: int = 6000, logits: list[float] = LOGITS, **params: object) -> dict[int, float]:
    """Shares of drawn tokens over many seeds."""
    rows = torch.tensor(logits).repeat(count, 1)
    picked = Counter(s.token_id for s in sample(rows, [request(seed, **params) for seed in range(count)]))
    return {token: n / count for token, n in picked.items()}


def expected(logits: list[float], kept: set[int] | None = None, temperature: float = 1.0) -> dict[int, float]:
    probs = torch.softmax(torch.tensor(logits, dtype=torch.float64) / temperature, dim=0).tolist()
    kept = set(range(len(logits))) if kept is None else kept
    total = sum(probs[i] for i in kept)
    return {i: probs[i] / total for i in kept}


def close(seen: dict[int, float], wanted: dict[int, float], count: int = 6000) -> bool:
    """Within five standard deviations each, and nothing outside."""
    if set(seen) - set(wanted):
        return False
    return all(abs(seen.get(t, 0.0) - p) < 5 * (p * (1 - p) / count) ** 0.5 + 1e-9 for t, p in wanted.items())


@pytest.mark.parametrize(
    ("params", "kept", "temperature"),
    [
        ({}, None, 1.0),
        ({"temperature": 0.5}, None, 0.5),
        ({"temperature": 2.0}, None, 2.0),
        ({"top_k": 2}, {0, 1}, 1.0),
        ({"top_p": 0.8}, {0, 1, 2}, 1.0),
        ({"top_p": 0.01}, {0}, 1.0),
        ({"min_p": 0.2}, {0, 1, 2}, 1.0),
        ({"top_k": 4, "top_p": 0.7}, {0, 1}, 1.0),
    ],
)
def test_draws_follow_the_filtered_distribution(params, kept, temperature):
    assert close(draw(**params), expected(LOGITS, kept, temperature))


def test_draws_of_a_wrong_distribution_would_be_noticed():
    assert not close(draw(temperature=0.8), expected(LOGITS))


def test_nucleus_larger_than_the_first_candidates_keeps_its_whole_mass():
    logits = [0.0] * 2000
    seen = draw(count=3000, logits=logits, top_p=0.9)
    assert len(seen) > 1200, "a flat row's nucleus is most of the vocabulary"


def test_tiny_temperature_is_greedy_and_finite():
    assert draw(count=50, temperature=1e-9) == {0: 1.0}


def test_same_seed_and_position_gives_the_same_token_in_any_batch():
    alone = sample(torch.tensor([LOGITS]), [request(7)])[0].token_id
    rows = torch.tensor(LOGITS).repeat(5, 1)
    mixed = [request(1, top_k=2), request(2, temperature=0.0), request(7), request(3), request(4, top_p=0.5)]
    assert sample(rows, mixed)[2].token_id == alone


def test_uniform_is_flat_over_seeds_and_counters():
    values = [uniform(seed, counter) for seed in range(100) for counter in range(100)]
    buckets = Counter(int(v * 20) for v in values)
    assert all(400 < buckets[i] < 600 for i in range(20))
    assert len(set(values)) == len(values)


def test_repetition_penalty_covers_prompt_and_output_on_both_sides_of_zero():
    row = torch.tensor([[3.0, 2.9, 1.0, -1.0]])
    assert sample(row.clone(), [request(prompt=(0,), temperature=0.0, repetition_penalty=1.5)])[0].token_id == 1
    both = request(prompt=(0,), output=(1,), temperature=0.0, repetition_penalty=4.0)
    assert sample(row.clone(), [both])[0].token_id == 2


def test_presence_and_frequency_penalties_count_output_alone():
    row = torch.tensor([[3.0, 2.5, 0.0]])
    assert sample(row.clone(), [request(prompt=(0, 0), temperature=0.0, presence_penalty=2.0)])[0].token_id == 0
    once = request(prompt=(2,), output=(0,), temperature=0.0, frequency_penalty=0.4)
    assert sample(row.clone(), [once])[0].token_id == 0
    twice = request(prompt=(2,), output=(0, 0), temperature=0.0, frequency_penalty=0.4)
    assert sample(row.clone(), [twice])[0].token_id == 1


def test_penalty_counts_follow_the_output_as_it_grows():
    growing = request(prompt=(2,), temperature=0.0, frequency_penalty=0.4)
    row = torch.tensor([[3.0, 2.5, 0.0]])
    picked = []
    for _ in range(4):
        token = sample(row.clone(), [growing])[0].token_id
        picked.append(token)
        growing.token_ids.append(token)
    assert picked == [0, 0, 1, 0]


def test_logit_bias_and_stop_mask_change_the_choice():
    row = torch.tensor([LOGITS])
    assert sample(row.clone(), [request(temperature=0.0, logit_bias={5: 100.0})])[0].token_id == 5
    held = request(temperature=0.0, stop_token_ids=(0,), min_tokens=3)
    assert sample(row.clone(), [held])[0].token_id == 1


def test_logprobs_are_of_the_model_not_of_the_parameters():
    p = {"temperature": 0.3, "top_k": 1, "logit_bias": {1: 50.0}, "top_logprobs": 3}
    result = sample(torch.tensor([LOGITS]), [request(**p)])[0]
    truth = torch.log_softmax(torch.tensor(LOGITS), dim=0)
    assert result.token_id == 1
    assert result.logprob.logprob == pytest.approx(float(truth[1]))
    assert [t for t, _ in result.logprob.top] == [0, 1, 2]
    assert [v for _, v in result.logprob.top] == pytest.approx(truth[:3].tolist())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_row_that_is_not_finite_gives_no_token_and_spares_its_neighbours(bad):
    rows = torch.tensor([LOGITS, LOGITS])
    rows[0, 3] = bad
    first, second = sample(rows, [request(temperature=0.0), request(temperature=0.0)])
    assert first.token_id is None
    assert second.token_id == 0


@pytest.mark.parametrize("number", [1.0 - 2.0**-53, 1.0])
@pytest.mark.parametrize("params", [{"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.4}, {"logit_bias": {4: -1e9}}])
def test_number_that_rounds_to_one_draws_the_last_token_that_is_left(monkeypatch, number, params):
    monkeypatch.setattr("engine.runner.sampler.uniform", lambda seed, counter: number)
    logits = [3.0, 1.0, 3.0, 1.0, 0.0]
    found = sample(torch.tensor([logits]), [request(**params)])[0].token_id
    assert found == (3 if "logit_bias" in params else 2)
