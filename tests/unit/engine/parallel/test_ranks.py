"""Ranks that are real processes compute what one process computes, and say who is missing when one is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.errors import ConfigError
from engine.parallel.group import RankGroup
from engine.parallel.shards import Shard
from tests.fakes.family_models import prompts, saved_model
from tests.fakes.ranks import exchanged, leaves_early, rank_logits, run_ranks, whole_logits

PROMPT = prompts()[1]


def ranks(degree: int) -> list[Shard]:
    return [Shard(rank, degree) for rank in range(degree)]


def test_two_ranks_give_the_logits_of_one_process(tmp_path: Path) -> None:
    saved_model("llama", tmp_path / "model")
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
    (answer,) = run_ranks(exchanged, [Shard(0, 3)], tmp_path, meet_s=0.5)
    assert "WorkerLost: worker_lost: ranks 1, 2 of 3 did not come within 0.5 s" in answer


def test_ranks_without_a_folder_to_meet_in_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere: it is no folder"):
        RankGroup.join(Shard(0, 2), tmp_path / "nowhere" / "m", torch.device("cpu"), meet_s=0.1, exchange_s=0.1)


def test_rank_that_leaves_is_named(tmp_path: Path) -> None:
    answers = run_ranks(leaves_early, ranks(2), tmp_path)
    assert "WorkerLost: worker_lost: rank 1 of 2 went missing during a sum" in answers[0]
    assert answers[1] is None
