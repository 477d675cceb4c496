"""All experts' products of a layer in the shape of Qwen3-30B-A3B; a part of bench.kernels.

Each token chooses eight experts at random, as in a step of unlike texts. What bounds is the bytes of the experts that
were chosen, or the operations.
"""

from __future__ import annotations

import torch

from bench.ceilings import RATES
from bench.kernel_bench import Bench
from bench.kernel_timing import copies_for, relative_error
from engine.kernels import reference_experts
from engine.kernels.triton.experts import experts as triton_experts
from engine.quant.expert_stack import ExpertStack

EXPERTS, HIDDEN, INNER, CHOICES = 128, 2048, 768, 8
RATE = RATES["NVIDIA H200"]


def experts(bench: Bench, tokens: int) -> None:
    hidden, inner = bench.shape((HIDDEN, INNER))
    count = max(CHOICES, EXPERTS // bench.scale)
    x = bench.normal(tokens, hidden)
    ids = torch.rand(tokens, count, device=bench.device).topk(CHOICES).indices.to(torch.int32)
    shares = torch.rand(tokens, CHOICES, device=bench.device)
    layer_bytes = count * 3 * hidden * inner * x.element_size()
    layers = [_layer(bench, count, hidden, inner) for _ in range(min(3, copies_for(layer_bytes // 8)))]
    took_us = bench.times(lambda layer: triton_experts(x, ids, shares, *layer), layers)
    chosen = len(torch.unique(ids))
    read_us = chosen / count * layer_bytes / RATE.copy_bytes_s * 1e6
    products_us = tokens * CHOICES * 3 * 2 * hidden * inner / RATE.products_s * 1e6
    gate_up, down = (_double(stack) for stack in layers[0])
    truth = reference_experts.experts(x[:64].double(), ids[:64], shares[:64], gate_up, down)
    bench.show(
        "experts",
        tokens=tokens,
        chosen=chosen,
        us=round(took_us, 1),
        bound_us=round(max(read_us, products_us), 1),
        error=relative_error(triton_experts(x, ids, shares, *layers[0])[:64], truth),
    )


def _layer(bench: Bench, count: int, hidden: int, inner: int) -> tuple[ExpertStack, ExpertStack]:
    gate_up = bench.normal(count * 2 * inner, hidden, spread=0.02)
    return ExpertStack(gate_up, count), ExpertStack(bench.normal(count * hidden, inner, spread=0.02), count)


def _double(stack: ExpertStack) -> ExpertStack:
    assert isinstance(stack.weight, torch.Tensor)
    return ExpertStack(stack.weight.double(), stack.num_experts)
