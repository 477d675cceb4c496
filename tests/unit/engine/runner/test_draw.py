"""The batched draw against the sampler's, which is held to distributions worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.devices.cpu import CpuDevice
from engine.kernels import reference
from engine.kernels.reference_sampling import draw_tokens
from engine.messages import SamplingParams
from engine.runner.constrain import fill_masks
from engine.runner.draw import draw, plan_draw, reader
from engine.runner.sampler import Sampled, sample
from engine.runner.token_counts import TokenCounts
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


OWN_TOKENS = [
    {"temperature": 0.0, "repetition_penalty": 1.5},
    {"presence_penalty": 1.0, "frequency_penalty": 0.5},
    {"repetition_penalty": 0.8, "top_p": 0.8},
    {"temperature": 0.0, "frequency_penalty": 3.0},
    {"logit_bias": {1: 4.0, 7: -100.0}},
    {"temperature": 0.0, "logit_bias": {3: 100.0}},
    {"min_tokens": 3, "stop_token_ids": (0, 1, 2)},
    {"temperature": 0.0, "min_tokens": 9, "stop_token_ids": (5,), "repetition_penalty": 2.0},
]
WITH_LOGPROBS = [{"top_logprobs": 3}, {"top_logprobs": 0, "temperature": 0.0}, {"top_logprobs": 2, "top_k": 4}]


def request(seed: int, output: tuple[int, ...] = (), **params: object) -> Request:
    sampling = SamplingParams(max_tokens=9, **params)  # type: ignore[arg-type]
    return Request(f"r{seed}", [1, 2, *output], 2, sampling, seed, 0, 0, pages=None)  # type: ignore[arg-type]


def chosen(logits: torch.Tensor, requests: list[Request], counts: TokenCounts | None = None) -> list[Sampled]:
    device = CpuDevice()
    counts = counts or TokenCounts(device, logits.shape[1])
    masks = fill_masks(requests, [()] * len(requests), logits.shape[1])
    plan = plan_draw(requests, counts, (), masks)
    assert plan is not None
    picked = reference.pick_greedy(logits)
    logprobs = draw(logits.clone(), picked, plan, counts, draw_tokens, device)
    return reader(requests, picked, logprobs, device)()


def drawn(logits: torch.Tensor, requests: list[Request]) -> list[int | None]:
    return [result.token_id for result in chosen(logits, requests)]


def test_draws_equal_the_samplers_for_every_filter():
    torch.manual_seed(0)
    cases = FILTERS + OWN_TOKENS
    requests = [request(seed, **cases[seed % len(cases)]) for seed in range(400)]
    logits = torch.randn(len(requests), 300) * 2
    host = [result.token_id for result in sample(logits.clone(), requests)]
    assert drawn(logits, requests) == host


def test_values_that_tie_at_a_border_all_stay():
    logits = torch.tensor([[1.0, 3.0, 3.0, 3.0, 0.0]])
    for params in ({"top_k": 2}, {"top_p": 0.4}):
        requests = [request(seed, **params) for seed in range(300)]
        rows = logits.repeat(len(requests), 1)
        assert set(drawn(rows, requests)) == {1, 2, 3}
        assert {result.token_id for result in sample(rows.clone(), requests)} == {1, 2, 3}


def test_log_probabilities_equal_the_samplers():
    torch.manual_seed(2)
    requests = [request(seed, **WITH_LOGPROBS[seed % 3], frequency_penalty=0.5 * (seed % 2)) for seed in range(12)]
    logits = (torch.randn(12, 100) * 4).round() / 4  # with ties
    for got, truth in zip(chosen(logits, requests), sample(logits.clone(), requests), strict=True):
        assert got.token_id == truth.token_id
        assert got.logprob is not None
        assert truth.logprob is not None
        assert got.logprob.logprob == pytest.approx(truth.logprob.logprob, abs=1e-5)
        assert [token for token, _ in got.logprob.top] == [token for token, _ in truth.logprob.top]


class Constraint:
    """A grammar that allows every third token, or that has failed and says nothing."""

    words = 2

    def __init__(self, failed: bool = False) -> None:
        self.failed = failed

    def fill_guessed(self, mask, draft, may_stop):
        for token in range(64 if not self.failed else 0):
            if token % 3:
                mask[:, token // 32] &= ~np.array(1 << (token % 32), np.uint32).view(np.int32)


def test_grammars_log_probabilities_are_of_the_model_and_the_choice_is_the_samplers():
    torch.manual_seed(3)
    kinds = [*WITH_LOGPROBS, {}, {"temperature": 0.0}, {"frequency_penalty": 0.7, "top_logprobs": 4}, {"top_p": 0.5}]
    requests = [request(seed, **kinds[seed % len(kinds)]) for seed in range(40)]
    for one in requests:
        if one.seed % 4 < 3:
            one.grammar = Constraint(failed=one.seed % 4 == 2)
    logits = torch.randn(40, 60)
    found = chosen(logits, requests)
    host = sample(logits.clone(), requests)
    assert [one.token_id for one in found] == [one.token_id for one in host]
    for got, truth, one in zip(found, host, requests, strict=True):
        if one.seed % 4 < 2:
            assert got.token_id % 3 == 0
        assert (got.logprob is None) == (truth.logprob is None)
        if got.logprob is not None:
            assert got.logprob.top == [(token, pytest.approx(number, abs=1e-5)) for token, number in truth.logprob.top]
            assert got.logprob.logprob == pytest.approx(truth.logprob.logprob, abs=1e-5)


def test_counts_follow_tokens_that_the_host_has_not_seen():
    """Tokens drawn on the device count at the next draw although the host's list still says pending."""
    counts = TokenCounts(CpuDevice(), 4)
    ahead = request(1, temperature=0.0, frequency_penalty=0.4)
    row = torch.tensor([[3.0, 2.5, 0.0, -1.0]])
    tokens = []
    for _ in range(4):
        tokens.append(chosen(row, [ahead], counts)[0].token_id)
        ahead.token_ids.append(-1)
    assert tokens == [0, 0, 1, 0]


def test_counts_take_up_tokens_that_the_host_chose_meanwhile():
    counts = TokenCounts(CpuDevice(), 4)
    mixed = request(1, temperature=0.0, frequency_penalty=0.4)
    row = torch.tensor([[3.0, 2.5, 0.0, -1.0]])
    assert chosen(row, [mixed], counts)[0].token_id == 0
    mixed.token_ids += [0, 0]  # the one drawn, and one that a checked guess gave
    assert chosen(row, [mixed], counts)[0].token_id == 1


def test_row_of_counts_is_clean_for_its_next_owner():
    counts = TokenCounts(CpuDevice(), 4)
    row = torch.tensor([[3.0, 2.5, 0.0, -1.0]])
    first = request(1, temperature=0.0, frequency_penalty=9.0)
    assert chosen(row, [first], counts)[0].token_id == 0
    counts.release(first)
    assert chosen(row, [request(2, temperature=0.0, frequency_penalty=9.0)], counts)[0].token_id == 0


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
    assert drawn(logits, [request(1), request(2)])[0] is None
    assert drawn(logits, [request(1, frequency_penalty=1.0), request(2)])[0] is None


def test_greedy_batch_has_nothing_to_draw():
    counts = TokenCounts(CpuDevice(), 4)
    assert plan_draw([request(1, temperature=0.0)], counts) is None
    assert counts.table.shape[0] == 0


@pytest.mark.parametrize("number", [1.0 - 2.0**-53, 1.0 - 2.0**-26, 1.0])
@pytest.mark.parametrize("device_floats", [torch.float64, torch.float32])
def test_number_that_rounds_to_one_in_single_precision_draws_what_filters_and_masks_leave(
    monkeypatch, number, device_floats
):
    """The last token of the vocabulary is what every row here has had removed."""
    monkeypatch.setattr("engine.runner.draw.uniform", lambda seed, counter: number)
    if device_floats is torch.float32:
        monkeypatch.setattr("engine.kernels.reference_sampling.HAVE_DOUBLE", ())
    torch.manual_seed(5)
    logits = torch.randn(5, 300)
    logits[:, -1] = -30.0
    logits[4, -1] = 30.0
    asked = [{"top_k": 5}, {"top_p": 0.3}, {"min_p": 0.5}, {"logit_bias": {299: -1e9}}]
    requests = [request(row, **params) for row, params in enumerate(asked)]
    requests.append(request(4, min_tokens=3, stop_token_ids=(299,)))
    for row, found in enumerate(chosen(logits, requests)):
        assert found.token_id is not None
        probs = torch.softmax(logits[row], dim=0)
        assert found.token_id != 299
        if row == 0:
            assert found.token_id in probs.topk(5).indices.tolist()
        if row == 2:
            assert probs[found.token_id] >= 0.5 * probs.max()
