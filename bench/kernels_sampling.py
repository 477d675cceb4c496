"""Choosing a batch's tokens, beside what reading the logits once takes; a part of bench.kernels.

Logits are normal with a few that stand out. A time is that of the largest logits, which every step finds, and of the
draw.
"""

from __future__ import annotations

import torch

from bench.kernel_bench import Bench
from engine.devices import open_device
from engine.kernels.reference_sampling import Asked
from engine.kernels.triton.choose import draw_tokens
from engine.kernels.triton.greedy import pick_greedy
from engine.messages import SamplingParams
from engine.runner.draw import plan_draw
from engine.runner.token_counts import TokenCounts
from engine.scheduler.request import Request

VOCAB = 128_256
SPREAD, EVERY, PEAK = 2.2, 5000, 14.0  # of the logits; how many stand out, and by how much at most
PENALTIES = {"repetition_penalty": 1.1, "presence_penalty": 0.2, "frequency_penalty": 0.2}
CASES: dict[str, dict[str, float]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {},
    "top_p 0.9": {"top_p": 0.9},
    "top_k 50": {"top_k": 50},
    "min_p 0.05": {"min_p": 0.05},
    "top_k 50, top_p 0.9": {"top_k": 50, "top_p": 0.9, "temperature": 0.8},
    "penalties": {"temperature": 0.0, **PENALTIES},
    "logprobs 0": {"temperature": 0.0, "top_logprobs": 0},
    "logprobs 5": {"temperature": 0.0, "top_logprobs": 5},
    "logprobs 20": {"temperature": 0.0, "top_logprobs": 20},
    "top_p 0.9, penalties, logprobs 5": {"top_p": 0.9, "top_logprobs": 5, **PENALTIES},
}


def sampling(bench: Bench, rows: int) -> None:
    vocab = max(256, VOCAB // bench.scale)
    logits = torch.empty(rows, vocab, device=bench.device).normal_(0.0, SPREAD)
    logits[:, ::EVERY] += torch.rand(rows, -(-vocab // EVERY), device=bench.device) * PEAK
    for name, params in CASES.items():
        took_us = _time(bench, logits.clone(), params)
        bound_us = logits.numel() * logits.element_size() / bench.copy_bytes_s * 1e6
        bench.show("sampling", what=name, rows=rows, vocab=vocab, us=round(took_us, 1), bytes_us=round(bound_us, 1))


def _time(bench: Bench, logits: torch.Tensor, params: dict[str, float]) -> float:
    device = open_device(str(bench.device))
    counts = TokenCounts(device, logits.shape[1])
    requests = [
        Request(f"r{row}", [row, 5, 6, 7, 8], 3, SamplingParams(max_tokens=9, **params), row, 0, 0, pages=None)  # type: ignore[arg-type]
        for row in range(len(logits))
    ]
    plan = plan_draw(requests, counts)
    if plan is None:
        return bench.times(pick_greedy, [logits])
    words = device.copy_to_device(plan.words)
    asked = Asked(words, len(plan.rows), plan.added, plan.masks, plan.most, plan.spares)
    return bench.times(lambda x: draw_tokens(x, pick_greedy(x), counts.table, asked), [logits])
