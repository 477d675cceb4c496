"""Strategy: what the operator means, and what that asks of a profile. Imports nothing of Bayard."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Strategy(StrEnum):
    LATENCY = "latency"
    THROUGHPUT = "throughput"
    BALANCED = "balanced"
    LONG_CONTEXT = "long-context"
    QUALITY = "quality"


@dataclass(frozen=True, slots=True)
class Goal:
    """What a strategy asks for where the operator has not said otherwise."""

    users_cpu: int  # streams in one step on a CPU
    users_gpu: int  # ... on an accelerator
    context_cap_tokens: int | None  # None: all that the model was made for
    mean_fill: float  # how full one stream's context is when the KV pool is sized
    step_target_cpu_s: float  # a step that carries a prompt chunk should not last longer
    step_target_gpu_s: float
    chunk_max_tokens: int
    guessed_tokens: int  # that a step checks at once, where they pay; few streams leave arithmetic idle
    prefers_exact_kv: bool  # keep KV in the activations' precision even if less fits
    meaning: str

    def users(self, on_cpu: bool) -> int:
        return self.users_cpu if on_cpu else self.users_gpu

    def step_target_s(self, on_cpu: bool) -> float:
        return self.step_target_cpu_s if on_cpu else self.step_target_gpu_s


GOALS: dict[Strategy, Goal] = {
    Strategy.LATENCY: Goal(
        users_cpu=4,
        users_gpu=16,
        context_cap_tokens=32_768,
        mean_fill=0.5,
        step_target_cpu_s=0.20,
        step_target_gpu_s=0.03,
        chunk_max_tokens=512,
        guessed_tokens=4,
        prefers_exact_kv=False,
        meaning="few streams, each as fast as it can be",
    ),
    Strategy.THROUGHPUT: Goal(
        users_cpu=32,
        users_gpu=256,
        context_cap_tokens=32_768,
        mean_fill=0.125,
        step_target_cpu_s=1.0,
        step_target_gpu_s=0.2,
        chunk_max_tokens=8192,
        guessed_tokens=0,
        prefers_exact_kv=False,
        meaning="as many tokens a second as the box can make, over all streams",
    ),
    Strategy.BALANCED: Goal(
        users_cpu=12,
        users_gpu=64,
        context_cap_tokens=32_768,
        mean_fill=0.25,
        step_target_cpu_s=0.45,
        step_target_gpu_s=0.08,
        chunk_max_tokens=2048,
        guessed_tokens=2,
        prefers_exact_kv=False,
        meaning="most of the throughput without long pauses in a stream",
    ),
    Strategy.LONG_CONTEXT: Goal(
        users_cpu=2,
        users_gpu=4,
        context_cap_tokens=None,
        mean_fill=1.0,
        step_target_cpu_s=1.0,
        step_target_gpu_s=0.2,
        chunk_max_tokens=8192,
        guessed_tokens=4,
        prefers_exact_kv=False,
        meaning="the longest context that fits, for a few streams",
    ),
    Strategy.QUALITY: Goal(
        users_cpu=4,
        users_gpu=16,
        context_cap_tokens=32_768,
        mean_fill=0.5,
        step_target_cpu_s=0.45,
        step_target_gpu_s=0.08,
        chunk_max_tokens=1024,
        guessed_tokens=0,
        prefers_exact_kv=True,
        meaning="nothing is rounded further than the checkpoint already is, unless asked for",
    ),
}
