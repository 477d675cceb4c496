"""Ranks on several accelerators of one machine, which sum through NCCL."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.parallel.shards import Shard
from tests.fakes.family_models import prompts, saved_model
from tests.fakes.ranks import rank_logits, run_ranks, whole_logits

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are not two CUDA devices here"),
]


@pytest.mark.parametrize(("dtype", "near"), [(torch.float32, 2e-2), (torch.bfloat16, 0.35)])
def test_two_ranks_give_the_logits_of_one_device(dtype: torch.dtype, near: float, tmp_path: Path) -> None:
    saved_model("llama", tmp_path / "model")
    prompt = prompts()[1]
    whole = whole_logits(str(tmp_path / "model"), prompt, "cuda:0", dtype)
    ranks = [Shard(rank, 2) for rank in range(2)]
    for answer in run_ranks(
        rank_logits, ranks, tmp_path, str(tmp_path / "model"), prompt, "cuda", dtype, device="cuda"
    ):
        assert not isinstance(answer, str), answer
        assert float((answer[0] - whole).abs().max() / whole.std()) < near
