"""A model cut into ranks gives the logits of the whole one, whatever its family stores and where."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
import transformers

from engine.errors import PlanError, UnsupportedFormat
from engine.layers.attention import Attention
from engine.layers.mlp import GatedMlp
from engine.models.recorded import can_record
from engine.parallel.decoder import RankDecoder
from engine.parallel.loading import load_rank
from engine.spec import read_spec
from tests.fakes.family_models import SIZES, prompts, saved_model
from tests.fakes.gguf_models import write_gguf
from tests.fakes.rank_threads import ThreadGroup, lone_rank, run_rank_threads
from tests.fakes.ranks import prompt_logits, whole_logits

PROMPT = prompts()[1]
CASES = (
    ("llama", 2),
    ("llama", 6),  # two KV heads: three ranks hold each
    ("llama-bias", 2),
    ("llama-tied", 2),
    ("llama-one-kv-head", 3),
    ("llama-no-gqa", 3),
    ("mistral-window", 2),
    ("qwen2", 2),
    ("qwen3-bias", 6),
    ("gemma2", 2),
    ("gemma3_text", 6),
    ("granite", 2),
    ("phi3", 2),
    ("phi3", 6),
    ("glm4", 2),
)


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def loaded(group: ThreadGroup, path: Path) -> RankDecoder:
    model = load_rank(read_spec(path), group, "cpu", torch.float32, lambda done, total: None)
    assert isinstance(model, RankDecoder)
    return model


def assert_ranks_agree_with_whole(path: Path, degree: int, prompt: list[int]) -> None:
    whole = whole_logits(str(path), prompt)
    layers = len(read_spec(path).layers)

    def work(group: ThreadGroup) -> tuple[torch.Tensor, int]:
        model = loaded(group, path)
        assert not can_record(model), "a program of the CPU library would not sum"
        assert not model.replayable
        return prompt_logits(model, prompt, torch.device("cpu"), torch.float32)[0], group.sums

    for logits, sums in run_rank_threads(work, degree):
        torch.testing.assert_close(logits, whole, atol=1e-4, rtol=1e-4)
        assert sums == 2 * 2 * layers  # two steps, after attention and after the MLP of each layer


@pytest.mark.parametrize(("case", "degree"), CASES)
def test_ranks_give_the_logits_of_the_whole_model(case: str, degree: int, tmp_path: Path) -> None:
    saved_model(case, tmp_path)
    assert_ranks_agree_with_whole(tmp_path, degree, PROMPT)


def test_three_ranks_of_a_quantised_model_give_its_logits(smollm_path: Path) -> None:
    assert_ranks_agree_with_whole(smollm_path, 3, list(range(100, 120)))


def test_ranks_hold_their_share_of_the_layers(smollm_path: Path) -> None:
    spec = read_spec(smollm_path)
    attention, mlp = spec.layers[0].attention, spec.layers[0].mlp
    for rank in range(3):
        layer = loaded(lone_rank(rank, 3), smollm_path).layers[0]
        assert isinstance(layer.attention, Attention)
        assert isinstance(layer.mlp, GatedMlp)
        third = (attention.num_heads + 2 * attention.num_kv_heads) * attention.head_dim // 3
        assert layer.attention.qkv.out_features == third
        assert layer.attention.spec.num_kv_heads == 1
        assert layer.mlp.gate_up.out_features == 2 * mlp.intermediate_size // 3


def small_q8(folder: Path) -> Path:
    changes: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "head_dim": 16}
    torch.manual_seed(3)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**(SIZES | changes), attn_implementation="eager"))
    path = folder / "small.gguf"
    write_gguf(path, model.eval(), "llama", gguf.GGMLQuantizationType.Q8_0)
    return path


def test_cut_at_block_borders_gives_the_logits_of_the_whole_model(tmp_path: Path) -> None:
    assert_ranks_agree_with_whole(small_q8(tmp_path), 2, PROMPT)


def test_cut_inside_a_block_is_refused_with_its_columns(tmp_path: Path) -> None:
    path = small_q8(tmp_path)
    with pytest.raises(UnsupportedFormat, match=r"attn_o of layer 0 as Q8_0 in blocks of 32; rank 1 of 4 .* 16 to 32"):
        loaded(lone_rank(1, 4), path)


@pytest.mark.parametrize(
    ("case", "why"),
    [
        ("mixtral", "has experts in layer 0"),
        ("olmo2", "architecture olmo2 are not split"),
        ("deepseek_v2", "architecture deepseek_v2 are not split"),
    ],
)
def test_model_that_is_not_split_is_refused(case: str, why: str, tmp_path: Path) -> None:
    saved_model(case, tmp_path)
    with pytest.raises(UnsupportedFormat, match=why) as refused:
        loaded(lone_rank(0, 2), tmp_path)
    assert "several replicas" in refused.value.hint


def test_degree_that_does_not_divide_is_refused_before_loading(smollm_path: Path) -> None:
    with pytest.raises(PlanError, match="9 query heads in layer 0; 2 ranks"):
        loaded(lone_rank(0, 2), smollm_path)
