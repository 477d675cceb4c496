"""Ops and Linear: which matrices are fused, what is said about the choice, and that results do not depend on it."""

from __future__ import annotations

from dataclasses import replace

import gguf
import numpy as np
import pytest
import torch

from engine.kernels.reference_experts import CAPTURED_ROWS
from engine.kernels.registry import OPS, OpQuery
from engine.layers.ops import Ops
from engine.layers.weight import Weight, half_style_rows, kind_of, stack_rows, take_rows
from engine.quant.encode import encode, encode_mixed
from engine.quant.expert_stack import ExpertStack
from engine.quant.quant_tensor import QuantTensor

QUERY = OpQuery("cpu", "float32", kv_dtype="float32", head_dim=16)


def weight(kind: str, rows: int, seed: int) -> Weight:
    values = np.random.default_rng(seed).standard_normal((rows, 64), dtype=np.float32)
    if kind in ("F32", "F16", "BF16"):
        dtype = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[kind]
        return torch.from_numpy(values).to(dtype)
    return QuantTensor(kind, torch.from_numpy(gguf.quantize(values, gguf.GGMLQuantizationType[kind])), (rows, 64))


def numbers(of: Weight) -> torch.Tensor:
    return of.dequantize() if isinstance(of, QuantTensor) else of.float()


@pytest.mark.parametrize(
    ("kinds", "parts"),
    [
        (["Q4_0", "Q4_0", "Q4_0"], 1),
        (["Q4_0", "Q4_0", "Q8_0"], 2),
        (["Q4_0", "Q8_0", "Q4_0"], 3),
        (["F32", "F32"], 1),
        (["F16", "Q8_0", "Q8_0"], 2),
        (["BF16"], 1),
    ],
)
@pytest.mark.parametrize("with_bias", [False, True])
def test_linear_of_several_weights_puts_outputs_side_by_side(kinds: list[str], parts: int, with_bias: bool) -> None:
    weights = [weight(kind, 8 * (i + 1), i) for i, kind in enumerate(kinds)]
    biases = [torch.full((w.shape[0],), float(i)) if with_bias and i != 1 else None for i, w in enumerate(weights)]
    linear = Ops(QUERY).linear(weights, biases)
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(4))
    wanted = [x @ numbers(w).T + (0.0 if b is None else b) for w, b in zip(weights, biases, strict=True)]
    assert len(linear.parts) == parts
    assert linear.out_features == sum(w.shape[0] for w in weights)
    torch.testing.assert_close(linear(x), torch.cat(wanted, dim=1), atol=1e-4, rtol=1e-4)


def test_kernels_names_every_plain_op_and_each_weight_kind_once() -> None:
    ops = Ops(QUERY)
    ops.linear([weight("Q8_0", 4, 0), weight("F16", 4, 1)], [None, None])
    ops.linear([weight("Q8_0", 4, 0)], [None])
    ops.embedding(weight("Q4_1", 4, 2))
    not_of_layers = {
        "linear",
        "embedding",
        "gelu_mul",
        "route",
        "experts",
        "latent_write",
        "paged_latent_attention",
        "pick_greedy",
        "choose_tokens",
        "draw_tokens",
        "newest_tokens",
        "keep_tokens",
        "rope_kv_write",
        "prompt_attention",
    }  # the last two are listed where a kernel has them
    plain = {op for op in OPS if op not in not_of_layers}
    everywhere = set(ops.kernels) - {"rope_kv_write", "prompt_attention"}
    assert everywhere == plain | {"linear Q8_0", "linear F16", "embedding Q4_1"}
    assert all(ops.kernels.values())


def test_notes_say_once_what_runs_on_plain_torch_and_why() -> None:
    strange = OpQuery("meta", "float32")  # no kernel is written for it
    ops = Ops(strange)
    (note,) = ops.notes()
    assert "rms_norm" in note
    assert "paged_attention" in note
    assert len(note.split(": ", 1)[1]) > 10


def test_half_style_rows_undo_the_interleaved_storage() -> None:
    natural = torch.arange(2 * 6)
    stored = natural.reshape(2, 2, 3).transpose(1, 2).reshape(-1)  # head by head: 0 3 1 4 2 5
    assert stored[:6].tolist() == [0, 3, 1, 4, 2, 5]
    assert torch.equal(stored[half_style_rows(2, 6)], natural)


@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0", "F16"])
def test_rows_taken_and_stacked_keep_their_numbers(kind: str) -> None:
    first, second = weight(kind, 6, 0), weight(kind, 3, 1)
    order = torch.tensor([5, 0, 2])
    assert torch.equal(numbers(take_rows(first, order)), numbers(first)[order])
    stacked = stack_rows([first, second])
    assert kind_of(stacked) == kind
    assert torch.equal(numbers(stacked), torch.cat([numbers(first), numbers(second)]))
    assert stack_rows([first]) is first


def test_only_kernels_that_ask_nothing_of_the_host_may_be_replayed() -> None:
    assert Ops(OpQuery("meta", "float32")).asks_device
    pytest.importorskip("triton")
    on_gpu = OpQuery("cuda", "bfloat16", kv_dtype="bfloat16", head_dim=64, capabilities=frozenset({"triton"}))
    ops = Ops(on_gpu)
    assert not ops.asks_device
    assert ops.latent_attention is not None
    assert not ops.asks_device
    assert Ops(replace(on_gpu, head_dim=512)).asks_device
    assert ops.captured_rows is None
    plain = encode_mixed(torch.randn(4 * 32, 32), torch.tensor([3]))  # which experts' kernels do not take
    ops.experts(ExpertStack(plain, 4), ExpertStack(encode_mixed(torch.randn(4 * 32, 16), torch.tensor([1])), 4), "silu")
    assert not ops.asks_device
    assert ops.captured_rows == CAPTURED_ROWS, "plain torch looks at steps of more rows"
    for width, rows in ((64, None), (48, CAPTURED_ROWS)):  # which half bytes' kernels take, and do not
        ops = Ops(on_gpu)
        gate_up, down = (encode(torch.randn(*shape), "int4", 16) for shape in ((8 * width, 64), (4 * 64, width)))
        ops.experts(ExpertStack(gate_up, 4), ExpertStack(down, 4), "silu")
        assert ops.captured_rows == rows, width
