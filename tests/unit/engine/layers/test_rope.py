"""Rotary tables beside transformers' own, for every way of stretching them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from engine.layers.rope import rope_table, scaled_frequencies
from engine.spec.fields import Fields
from engine.spec.model_spec import RopeSpec
from engine.spec.rope_fields import hf_rope

HEAD_DIM = 64
ORIGINAL = {"original_max_position_embeddings": 256}
CASES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 500000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    "llama3": ORIGINAL
    | {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "yarn": ORIGINAL | {"rope_type": "yarn", "rope_theta": 1000000.0, "factor": 4.0},
    "yarn-betas": ORIGINAL
    | {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 16.0, "beta_fast": 24.0, "beta_slow": 2.0},
    "yarn-mscale": ORIGINAL
    | {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 40.0, "mscale": 0.9, "mscale_all_dim": 0.7},
    "yarn-attention-factor": ORIGINAL
    | {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "attention_factor": 1.25},
    "yarn-not-truncated": ORIGINAL | {"rope_type": "yarn", "rope_theta": 150000.0, "factor": 32.0, "truncate": False},
}


@pytest.mark.parametrize("case", CASES)
def test_frequencies_and_table_equal_those_of_transformers(case: str) -> None:
    parameters = CASES[case]
    factor = int(parameters.get("factor", 1))
    config = LlamaConfig(
        hidden_size=4 * HEAD_DIM,
        num_attention_heads=4,
        head_dim=HEAD_DIM,
        max_position_embeddings=256 * factor,
        rope_parameters=dict(parameters),
    )
    spec = hf_rope(Fields({"rope_parameters": parameters}, "config.json"), HEAD_DIM, 256 * factor)
    found, magnitude = scaled_frequencies(spec)
    if case != "default":
        wanted, wanted_magnitude = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, torch.device("cpu"))
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=0)
        assert magnitude == pytest.approx(wanted_magnitude)
    positions = torch.tensor([[0, 1, 17, 255]])
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), positions)
    rows = rope_table(spec, 256, torch.device("cpu"))[positions[0]]
    torch.testing.assert_close(rows[:, : HEAD_DIM // 2], cos[0, :, : HEAD_DIM // 2], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(rows[:, HEAD_DIM // 2 :], sin[0, :, : HEAD_DIM // 2], rtol=1e-5, atol=1e-5)


def test_factors_divide_each_frequency() -> None:
    plain, _ = scaled_frequencies(RopeSpec(10000.0, 8))
    factors = torch.tensor([1.0, 2.0, 4.0, 8.0])
    divided, magnitude = scaled_frequencies(RopeSpec(10000.0, 8, "factors"), factors)
    assert torch.equal(divided, plain / factors)
    assert magnitude == 1.0
