"""Re-quantised models for the benchmark: near their numbers, and files that the engine reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import transformers
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from bench.requantise import KINDS, SHAPES, encoded, kind_for, main
from bench.worker_figures import bytes_a_token, read_share
from engine.spec import read_spec
from tests.fakes.gguf_models import write_gguf

# A step of a block is at most this part of its numbers' range, and half of one is lost.
ERRORS = {
    "Q4_0": 1 / 15,
    "Q4_1": 1 / 28,
    "Q5_0": 1 / 31,
    "Q5_1": 1 / 60,
    "Q8_0": 1 / 250,
    "Q4_K": 1 / 24,
    "Q6_K": 1 / 55,
}


@pytest.mark.parametrize("kind", KINDS)
def test_encoded_numbers_come_back_within_a_step(kind: str) -> None:
    x = (np.random.default_rng(1).standard_normal((5, 512)) * 0.3).astype(np.float32)
    x[2] = 0.0
    x[3] = np.abs(x[3]) + 1.0
    back = dequantize(encoded(x, kind), GGMLQuantizationType[kind])
    spread = np.ptp(np.concatenate([x, np.zeros((5, 1), np.float32)], axis=1), axis=1, keepdims=True)
    assert (np.abs(back - x) <= ERRORS[kind] * spread + 1e-6).all()
    assert (back[2] == 0).all()


def test_kind_of_rows_that_are_no_whole_blocks_is_llama_cpps() -> None:
    assert [kind_for(576, kind) for kind in ("Q4_K", "Q6_K", "Q4_0")] == ["Q5_0", "Q8_0", "Q4_0"]
    assert kind_for(1536, "Q4_K") == "Q4_K"


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A llama whose inner width alone is in blocks of 256."""
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=96, intermediate_size=256, num_hidden_layers=2, num_attention_heads=3,
        num_key_value_heads=1, max_position_embeddings=128, tie_word_embeddings=True,
    )  # fmt: skip
    path = tmp_path / "small.gguf"
    write_gguf(path, transformers.LlamaForCausalLM(config).eval(), "llama", GGMLQuantizationType.Q4_1)
    return path


def test_files_are_read_again_with_their_new_kinds(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "q6.gguf"
    assert main(["--gguf", str(small), "--to", "Q6_K", "--out", str(out)]) == 0
    before, after = read_spec(str(small)), read_spec(str(out))
    assert (after.architecture, after.vocab_size, after.layers) == (before.architecture, 64, before.layers)
    assert {info.dtype for info in after.tensors if len(info.shape) > 1} == {"Q6_K", "Q8_0"}
    assert after.weight_bytes > bytes_a_token(out) > 0.9 * after.weight_bytes


def test_random_file_has_the_shape_asked_for(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = {"embedding_length": 64, "block_count": 3, "feed_forward_length": 128, "heads": 4, "kv_heads": 2}
    monkeypatch.setitem(SHAPES, "1B", shape)
    out = tmp_path / "random.gguf"
    assert main(["--gguf", str(small), "--to", "Q4_0", "--random", "1B", "--out", str(out)]) == 0
    spec = read_spec(str(out))
    assert (spec.hidden_size, len(spec.layers), spec.vocab_size) == (64, 3, 64)
    assert (spec.layers[0].attention.num_heads, spec.layers[0].attention.num_kv_heads) == (4, 2)
    assert {info.dtype for info in spec.tensors if len(info.shape) > 1} == {"Q4_0"}


def test_share_of_the_read_rate_is_of_the_bytes_a_token_needs(small: Path) -> None:
    assert read_share(10.0, small, bytes_a_token(small) * 20.0)["read_share"] == 0.5
