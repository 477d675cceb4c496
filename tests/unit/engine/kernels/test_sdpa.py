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
