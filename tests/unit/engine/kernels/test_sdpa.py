"""A whole prompt by torch's attention: padded to one of few lengths, which changes nothing."""

from __future__ import annotations

import pytest
import torch

from engine.kernels import reference, sdpa


@pytest.mark.parametrize("tokens", [1, 255, 256, 300])
def test_padding_leaves_a_prompts_attention_as_it_was(tokens: int) -> None:
    torch.manual_seed(tokens)
    qkv = torch.randn(tokens, 8, 16)  # strided views of one projection
    q, k, v = qkv[:, :4], qkv[:, 4:6], qkv[:, 6:]
    found = sdpa.prompt_attention(q, k, v, 0.3)
    assert found.shape == q.shape
    torch.testing.assert_close(found, reference.prompt_attention(q, k, v, 0.3), atol=1e-5, rtol=1e-5)


def test_lengths_are_few_and_little_longer_than_prompts() -> None:
    lengths = {sdpa.padded(tokens) for tokens in range(512, 32_769)}
    assert len(lengths) < 48
    assert all(tokens <= sdpa.padded(tokens) < tokens + 1024 for tokens in range(1, 32_769, 7))


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("spare", [0, 3])
def test_rows_behind_a_prompt_are_zeros(together: bool, spare: int) -> None:
    heads = torch.randn(30, 4 + 2 + 2 + spare, 8)
    q, k, v = heads[:, :4], heads[:, 4:6], heads[:, 6:8]
    if not together:
        k = k.clone()
    for found, given in zip(sdpa.with_room(q, k, v, 32), (q, k, v), strict=True):
        assert found.shape == (32, *given.shape[1:])
        assert torch.equal(found[:30], given)
        assert not found[30:].any()


def test_parts_that_overlap_in_their_matrix_are_padded_by_themselves() -> None:
    heads = torch.randn(30, 4, 8)
    q, k, v = heads[:, :2], heads[:, 2:4], heads[:, 1:3]
    found = sdpa.with_room(q, k, v, 31)
    assert all(torch.equal(part[:30], given) for part, given in zip(found, (q, k, v), strict=True))
