"""Everything that sampling knows at once, in every way of stepping: the same tokens and log-probabilities."""

from __future__ import annotations

import json

import jsonschema
import pytest
import torch

from engine.devices.cpu import CpuDevice
from engine.messages import FinishReason
from tests.fakes.engine_models import GraphDevice
from tests.fakes.sampled_crowd import ABORTED, FREE, JSON, SCHEMAS, TEXT, TOKENS, core_for_crowd, written


@pytest.fixture(scope="module")
def plain():
    """On the host, row by row."""
    return written(core_for_crowd(CpuDevice(), overlap=False, graphs=False))


@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlap"])
@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "replayed"])
def test_a_crowd_writes_and_is_told_what_the_host_would_say(plain, overlap, graphs):
    found = written(core_for_crowd(GraphDevice(), overlap=overlap, graphs=graphs))
    for name, truth in plain.items():
        one = found[name]
        if name in ABORTED:
            count = min(len(one.tokens), len(truth.tokens))
            assert one.finish is FinishReason.ABORT
            assert one.tokens[:count] == truth.tokens[:count]
            continue
        assert one.tokens == truth.tokens, name
        assert one.finish == truth.finish
        assert [told.token_id for told in one.logprobs] == [told.token_id for told in truth.logprobs]
        for ours, theirs in zip(one.logprobs, truth.logprobs, strict=True):
            assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-5)
            assert [token for token, _ in ours.top] == [token for token, _ in theirs.top]


def test_the_host_says_what_was_asked_for(plain):
    for name, params in {**JSON, **FREE}.items():
        one = plain[name]
        wanted = params.get("top_logprobs")
        assert len(one.logprobs) == (0 if wanted is None else len(one.tokens)) or one.finish is FinishReason.STOP
        for told in one.logprobs:
            assert len(told.top) == wanted
            assert [number for _, number in told.top] == sorted((number for _, number in told.top), reverse=True)
            assert told.logprob <= 0.0
    assert all(len(plain[name].tokens) == TOKENS for name in FREE if name not in {*ABORTED, "not yet"})
    assert 30 <= len(plain["not yet"].tokens) < TOKENS
    for name in JSON:
        if name not in ABORTED and plain[name].finish is FinishReason.STOP:
            jsonschema.validate(json.loads(TEXT.decode(plain[name].tokens)), SCHEMAS[0])
    assert sum(plain[name].finish is FinishReason.STOP for name in JSON) >= 2
    shares = torch.tensor([number for told in plain["told much"].logprobs for _, number in told.top]).exp()
    assert float(shares.view(-1, 20).sum(dim=1).max()) <= 1.0 + 1e-5
