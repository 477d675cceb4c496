"""Masks on logits: the same on the host and as a device does it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.runner.constrain import mask_here, mask_there


@pytest.mark.parametrize("vocab", [64, 97, 1000])
def test_masks_on_the_host_equal_those_on_a_device(vocab):
    generator = torch.Generator().manual_seed(vocab)
    logits = torch.randn(6, vocab, generator=generator)
    picked = logits.argmax(-1).to(torch.int32)
    picked[4] = -1
    rows = [0, 2, 4, 5]
    allowed = np.random.default_rng(vocab).integers(-(2**31), 2**31, (4, -(-vocab // 32)), dtype=np.int32)
    allowed[1] = 0
    allowed[1, 1] = 1  # token 32 alone
    here, there = logits.clone(), logits.clone()
    ours = mask_here(here, picked, rows, allowed)
    theirs = mask_there(there, picked, rows, allowed, torch.from_numpy)
    assert ours.tolist() == theirs.tolist()
    assert torch.equal(here[[0, 1, 2, 3, 5]], there[[0, 1, 2, 3, 5]])
    assert ours[4] == -1, "a row that is not finite stays marked"
    assert ours[2] == 32
    assert ours[[1, 3]].tolist() == picked[[1, 3]].tolist(), "rows without a grammar are not touched"
    for at, row in enumerate([0, 2]):
        for token in range(vocab):
            bit = (int(allowed[at, token // 32]) >> (token % 32)) & 1
            assert (here[row, token] == logits[row, token]) if bit else bool(torch.isneginf(here[row, token]))
