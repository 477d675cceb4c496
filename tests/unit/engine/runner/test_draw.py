"""The batched draw against the sampler's, which is held to distributions worked out by hand."""

from __future__ import annotations

import pytest
import torch

from engine.devices.cpu import CpuDevice
from engine.kernels import reference
from engine.messages import SamplingParams
from engine.runner.draw import can_draw, draw, plan_draw
from engine.runner.sampler import sample
from engine.scheduler.request import Request

FILTERS = [
    {},
    {"temperature": 0.0},
    {"temperature": 0.4},
    {"top_k": 5},
    {"top_k": 1},
    {"top_p": 0.6},
    {"top_p": 0.05},
    {"min_p": 0.3},
    {"top_k": 20, "top_p": 0.7, "min_p": 0.02, "temperature": 1.4},
    {"temperature": 1e-9},
]


def request(seed: int, **params: object) -> Request:
    sampling = SamplingParams(max_tokens=9, **params)  # type: ignore[arg-type]
    return Request("r", [1, 2], 2, sampling, seed, 0, 0, pages=None)  # type: ignore[arg-type]


def drawn(logits: torch.Tensor, requests: list[Request]) -> list[int]:
    plan = plan_draw(requests)
    assert plan is not None
    return draw(logits, reference.pick_greedy(logits), plan, CpuDevice()).tolist()


def test_draws_equal_the_samplers_for_every_filter():
    torch.manual_seed(0)
    requests = [request(seed, **FILTERS[seed % len(FILTERS)]) for seed in range(400)]
    logits = torch.randn(len(requests), 300) * 2
    host = [result.token_id for result in sample(logits.clone(), requests)]
    assert drawn(logits, requests) == host


def test_row_does_not_depend_on_its_neighbours():
    torch.manual_seed(1)
    requests = [request(seed, **FILTERS[seed % len(FILTERS)]) for seed in range(20)]
    logits = torch.randn(20, 100)
    together = drawn(logits, requests)
    for row in (0, 3, 8):
        assert drawn(logits[row : row + 1], [requests[row]]) == [together[row]]


def test_row_that_is_not_finite_stays_marked():
    logits = torch.randn(2, 50)
    logits[0, 7] = float("nan")
    assert drawn(logits, [request(1), request(2)])[0] == -1


def test_greedy_batch_has_nothing_to_draw():
    assert plan_draw([request(1, temperature=0.0)]) is None


@pytest.mark.parametrize(
    "params", [{"presence_penalty": 1.0}, {"logit_bias": {1: 2.0}}, {"top_logprobs": 0}, {"repetition_penalty": 1.2}]
)
def test_what_looks_at_own_tokens_is_left_to_the_host(params):
    assert not can_draw(request(1, **params))
    assert can_draw(request(1, top_p=0.5))
