"""Ranks that are real processes compute what one process computes, and say who is missing when one is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.parallel.shards import Shard
from tests.fakes.family_models import prompts, saved_model
from tests.fakes.ranks import exchanged, leaves_early, rank_logits, run_ranks, whole_logits

PROMPT = prompts()[1]


def ranks(degree: int) -> list[Shard]:
    return [Shard(rank, degree) for rank in range(degree)]


@pytest.mark.parametrize("case", ["llama", "gemma3_text"])
def test_two_ranks_give_the_logits_of_one_process(case: str, tmp_path: Path) -> None:
    saved_model(case, tmp_path / "model")
    whole = whole_logits(str(tmp_path / "model"), PROMPT)
    answers = run_ranks(rank_logits, ranks(2), tmp_path, str(tmp_path / "model"), PROMPT)
    for answer in answers:
        assert not isinstance(answer, str), answer
        logits, pages = answer
        torch.testing.assert_close(logits, whole, atol=1e-4, rtol=1e-4)
        assert pages[2] == 1, f"a rank's pages hold one of the two KV heads: {pages}"


def test_ranks_exchange_sums_and_columns(tmp_path: Path) -> None:
    first = torch.arange(6.0).view(2, 3)
    for answer in run_ranks(exchanged, ranks(2), tmp_path):
        assert not isinstance(answer, str), answer
        assert torch.equal(answer[0], 2 * first + 10)
        assert torch.equal(answer[1], torch.cat([first, first + 10], dim=1))


def test_rank_that_never_comes_is_named(tmp_path: Path) -> None:
    (answer,) = run_ranks(exchanged, [Shard(0, 3)], tmp_path, join_s=0.5)
    assert "WorkerLost: worker_lost: ranks 1, 2 of 3 did not come within 0.5 s" in answer


def test_rank_that_leaves_is_named(tmp_path: Path) -> None:
    answers = run_ranks(leaves_early, ranks(2), tmp_path, join_s=5.0)
    assert "WorkerLost: worker_lost: rank 1 of 2 went missing during a sum" in answers[0]
    assert answers[1] is None
