"""Twelve well-known models from 0.5B to 671B by the numbers of their public config.json files."""

from __future__ import annotations

from engine.spec.model_spec import ModelSpec
from tests.fakes.planned_models import made_spec

# name: hidden, layers, heads, kv heads, head dim, mlp, vocabulary, context, tied, experts, active, kind
_NUMBERS: dict[str, tuple[int, int, int, int, int, int, int, int, bool, int, int, str]] = {
    "qwen2.5-0.5b": (896, 24, 14, 2, 64, 4864, 151_936, 32_768, True, 0, 0, "BF16"),
    "llama-3.2-1b": (2048, 16, 32, 8, 64, 8192, 128_256, 131_072, True, 0, 0, "BF16"),
    "llama-3.2-3b": (3072, 28, 24, 8, 128, 8192, 128_256, 131_072, True, 0, 0, "BF16"),
    "qwen3-4b": (2560, 36, 32, 8, 128, 9728, 151_936, 40_960, True, 0, 0, "BF16"),
    "llama-3.1-8b": (4096, 32, 32, 8, 128, 14_336, 128_256, 131_072, False, 0, 0, "BF16"),
    "gemma-3-12b": (3840, 48, 16, 8, 256, 15_360, 262_208, 131_072, True, 0, 0, "BF16"),
    "qwen2.5-14b": (5120, 48, 40, 8, 128, 13_824, 152_064, 131_072, False, 0, 0, "BF16"),
    "qwen3-30b-a3b": (2048, 48, 32, 4, 128, 768, 151_936, 40_960, False, 128, 8, "BF16"),
    "qwen2.5-32b": (5120, 64, 40, 8, 128, 27_648, 152_064, 131_072, False, 0, 0, "BF16"),
    "llama-3.3-70b-fp8": (8192, 80, 64, 8, 128, 28_672, 128_256, 131_072, False, 0, 0, "F8_E4M3"),
    "qwen3-235b-a22b": (4096, 94, 64, 4, 128, 1536, 151_936, 40_960, False, 128, 8, "BF16"),
    "deepseek-v3-671b": (7168, 61, 128, 8, 128, 2048, 129_280, 163_840, False, 256, 8, "F8_E4M3"),
}


def public_models() -> dict[str, ModelSpec]:
    """Latent attention is written as eight key and value heads: its cache is smaller than that, never larger."""
    found = {}
    for name, (hidden, layers, heads, kv, dim, mlp, vocab, context, tied, experts, active, kind) in _NUMBERS.items():
        found[name] = made_spec(
            name, hidden=hidden, layers=layers, heads=heads, kv_heads=kv, head_dim=dim, mlp=mlp, vocab=vocab,
            context=context, kind=kind, experts=experts, active=active, tied=tied,
        )  # fmt: skip
    return found
