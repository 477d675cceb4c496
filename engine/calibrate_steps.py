"""StepProbe: what a step of a small decoder takes beyond reading its weights, through the engine that will run it.

Where a CPU's library runs a whole step in one call, what a layer costs beside its weights is no time of calls: every
matrix begins with a meeting of all threads and with memory that has not begun to stream. Small models spend a third of
a step on that. What a step costs whatever its layers is found from a decoder that has next to nothing to read.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory

from engine.builder import build_engine
from engine.messages import Knobs, SamplingParams, Submit, WorkerConfig

KIND, _PRECISION = "Q4_1", "int4"  # so little to read that nothing hides behind reading
_DIM, _VOCAB = 64, 512
_PROMPT_TOKENS, _STEPS = 8, 100
_WARM_STEPS = 8
_SHORT_S = 0.5  # less, and a decoder that caches hold must do: it is loaded sooner


@dataclass(frozen=True, slots=True)
class _Shape:
    """Of a decoder."""

    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int

    @property
    def layer_weights(self) -> int:
        return 2 * self.hidden * _DIM * (self.heads + self.kv_heads) + 3 * self.hidden * self.inner


_LEAST = _Shape(layers=2, hidden=64, inner=128, heads=1, kv_heads=1)
# Layers of the smallest models that people use, so many that they come from memory like the matrices of the probes.
_SMALL = _Shape(layers=36, hidden=576, inner=1536, heads=9, kv_heads=3)


@dataclass(frozen=True, slots=True)
class StepOverheads:
    """Seconds"""

    step_s: float  # of scheduling, sampling and the call
    small_layer_s: float  # of one with its weights

    def layer_s(self, weight_s: float) -> float:
        """Of a layer beside its weights. weight_s: of one weight of KIND, one row"""
        return max(0.0, self.small_layer_s - _SMALL.layer_weights * weight_s)


def step_overheads(device: str, threads: int, seconds: float) -> StepOverheads:
    """Blocks: for about `seconds`, and while two small decoders are loaded."""
    small = _SMALL if seconds >= _SHORT_S else replace(_SMALL, layers=_SMALL.layers // 4)
    step_s = _best_step_s(_LEAST, device, threads, seconds / 4)
    return StepOverheads(step_s, (_best_step_s(small, device, threads, 3 * seconds / 4) - step_s) / small.layers)


def _best_step_s(shape: _Shape, device: str, threads: int, seconds: float) -> float:
    with TemporaryDirectory(prefix="bayard-probe-") as folder:
        _write(Path(folder), shape)
        return _best_of(folder, device, threads, seconds)


def _best_of(folder: str, device: str, threads: int, seconds: float) -> float:
    knobs = Knobs(max_running=1, token_budget=64, prefill_chunk=64)
    config = WorkerConfig(
        "probe",
        "probe",
        folder,
        "",
        device=device,
        kv_tokens=1024,
        max_context_tokens=512,
        weights=_PRECISION,
        threads=threads,
        knobs=knobs,
    )
    core = build_engine(config, lambda *_: None).core
    limit = time.perf_counter() + seconds
    prompt = list(range(10, 10 + _PROMPT_TOKENS))
    core.add(Submit("probe", prompt, SamplingParams(max_tokens=_STEPS, temperature=0.0, ignore_eos=True)))
    best, steps = float("inf"), 0
    while core.has_work() and (steps < 2 * _WARM_STEPS or time.perf_counter() < limit):
        began = time.perf_counter()
        core.step()
        steps += 1
        if steps > _WARM_STEPS:
            best = min(best, time.perf_counter() - began)
    return best


def _write(folder: Path, shape: _Shape) -> None:
    """A decoder of bf16 weights that are all nought."""
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": shape.hidden,
        "intermediate_size": shape.inner, "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads, "head_dim": _DIM, "vocab_size": _VOCAB, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "max_position_embeddings": 1024, "hidden_act": "silu", "tie_word_embeddings": True,
        "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (_VOCAB, shape.hidden)}
    wide, narrow = shape.heads * _DIM, shape.kv_heads * _DIM
    for index in range(shape.layers):
        at = f"model.layers.{index}"
        shapes |= {f"{at}.{norm}_layernorm.weight": (shape.hidden,) for norm in ("input", "post_attention")}
        shapes |= {
            f"{at}.self_attn.{name}_proj.weight": (rows, shape.hidden)
            for name, rows in zip("qkv", (wide, narrow, narrow), strict=True)
        }
        shapes[f"{at}.self_attn.o_proj.weight"] = (shape.hidden, wide)
        shapes |= {f"{at}.mlp.{name}_proj.weight": (shape.inner, shape.hidden) for name in ("gate", "up")}
        shapes[f"{at}.mlp.down_proj.weight"] = (shape.hidden, shape.inner)
    shapes["model.norm.weight"] = (shape.hidden,)
    header, end = {}, 0
    for name, sides in shapes.items():
        begin, end = end, end + 2 * prod(sides)
        header[name] = {"dtype": "BF16", "shape": list(sides), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)  # zeros, which take no room on the disk
