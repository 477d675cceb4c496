"""Llama and the families that differ from it by a flag or two."""

from __future__ import annotations

from engine.spec.family import Bias, Family, Window

FAMILIES = (
    Family("llama", "Llama 2, 3 and relatives", ("LlamaForCausalLM",), ("llama",), gguf_interleaved=True),
    Family("mistral", "Mistral", ("MistralForCausalLM",), (), window=Window.EVERY_LAYER),
    Family("qwen2", "Qwen2, Qwen2.5", ("Qwen2ForCausalLM",), ("qwen2",), bias=Bias.QKV, window=Window.UPPER_LAYERS),
    Family(
        "qwen3",
        "Qwen3",
        ("Qwen3ForCausalLM",),
        ("qwen3",),
        qk_norm=True,
        window=Window.UPPER_LAYERS,
    ),
)
