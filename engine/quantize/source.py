"""Source: the checkpoint that is quantised, a layer at a time under the names a Hugging Face folder has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.errors import UnsupportedFormat
from engine.layers.weight import Weight, decoded, half_style_rows, take_rows
from engine.models.checkpoint import MappedCheckpoint, Progress, check_size
from engine.models.gpt_oss import GptOssDecoder
from engine.models.loading import BUILDERS
from engine.spec.families import family_of
from engine.spec.family import Family
from engine.spec.kv_scales import ROLES
from engine.spec.model_spec import CheckpointFormat, LayerSpec, ModelSpec
from engine.spec.precision import is_rounded
from engine.spec.tensor_names import stored_name

# Their GGUF files differ from folders in names and in the order of rotated rows alone.
FROM_GGUF = ("llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True, slots=True)
class NamedTensor:
    """Read as it is asked for: what is there of it is a view of the file, or the file's bytes in another order."""

    role: str
    name: str
    rounded: bool
    stored: Weight  # as a folder has its rows

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.stored.shape)

    def numbers(self) -> Tensor:
        """As they are to be stored, of one that is not rounded; for reading alone."""
        return self.stored if isinstance(self.stored, Tensor) else decoded(self.stored, torch.float16)

    def tiles(self, rows: int, device: torch.device) -> Iterator[Tensor]:
        """Of one that is rounded: float32, so many rows at a time, which are the caller's."""
        for start in range(0, self.shape[0], rows):
            tile = slice(start, start + rows)
            if isinstance(self.stored, Tensor):
                yield self.stored[tile].to(device=device, dtype=torch.float32, copy=True)
            else:
                yield self.stored.dequantize(tile).to(device)


class Source:
    """Owner: one quantisation. Raises: UnsupportedFormat for what cannot be quantised."""

    def __init__(
        self,
        spec: ModelSpec,
        progress: Progress,
        device: torch.device,
        *,
        keeps_matrices: bool = False,
        learns_kv: bool = False,
    ) -> None:
        """keeps_matrices: none is to be rounded, so all come as they are stored, or as float16

        learns_kv: the multipliers of a cache that are there are not written, others are
        """
        refuse_unfit(spec)
        check_size(spec)
        self.spec = spec
        self.family: Family = family_of(spec.architecture)
        self.device = device
        self._keeps_matrices = keeps_matrices
        self._left_out = ROLES if learns_kv else ()
        self._from_gguf = spec.format is CheckpointFormat.GGUF
        self._checkpoint = MappedCheckpoint(spec, progress)

    def release(self) -> None:
        self._checkpoint.release()

    def layer(self, layer: LayerSpec) -> list[NamedTensor]:
        """Every tensor of a layer; the caller releases."""
        return list(self._tensors(layer.index, layer))

    def attention_module(self, layer: int) -> str:
        """The name that a layer's attention has in a folder."""
        return self._name("attn_o", layer).removesuffix(".o_proj.weight")

    def of_model(self, roles: tuple[str, ...]) -> list[NamedTensor]:
        return list(self._tensors(None, None, roles))

    def widths(self) -> set[int]:
        """The inputs' widths of all matrices that are rounded."""
        table = self._checkpoint.table
        return {info.shape[-1] for (role, _), info in table.items() if is_rounded(role) and len(info.shape) == 2}

    def kept_modules(self) -> list[str]:
        """Linear modules that are not rounded, by name: the head, routers, what latent attention spreads out by."""
        kept = ["lm_head"]
        for (role, layer), info in self._checkpoint.table.items():
            name = "" if layer is None else self._name(role, layer)
            if name.endswith(".weight") and len(info.shape) == 2 and not is_rounded(role):
                kept.append(name.removesuffix(".weight"))
        return kept

    def kv_cache_scheme(self) -> dict[str, Any] | None:
        """What a folder says of the multipliers of a KV cache that it brings, which are written as they are."""
        if self._from_gguf or self.spec.kv_scheme is None:
            return None
        config = json.loads((Path(self.spec.path) / "config.json").read_text(encoding="utf-8"))
        stated: dict[str, Any] = config["quantization_config"]["kv_cache_scheme"]
        return stated

    def _tensors(
        self, index: int | None, layer: LayerSpec | None, roles: tuple[str, ...] | None = None
    ) -> Iterator[NamedTensor]:
        """roles: None: all"""
        for role, of in self._checkpoint.table:
            if of != index or (roles is not None and role not in roles) or role in self._left_out:
                continue
            stored = self._checkpoint.matrix(role, of)
            self._checkpoint.doubt(stored, role, of)
            name = self._name(role, of)
            rounded = index is not None and is_rounded(role) and name.endswith(".weight") and len(stored.shape) == 2
            rounded = rounded and not self._keeps_matrices
            if isinstance(stored, Tensor) and not rounded:
                stored = stored.view(self._checkpoint.table[role, of].shape)
            if self._from_gguf and layer is not None:
                stored = self._in_halves(role, stored, layer)
            yield NamedTensor(role, name, rounded, stored)

    def _in_halves(self, role: str, stored: Weight, layer: LayerSpec) -> Weight:
        """Rows of rotated projections as folders have them."""
        attention = layer.attention
        heads = {"attn_q": attention.num_heads, "attn_k": attention.num_kv_heads}.get(role.removesuffix("_bias"))
        if heads is None or not self.family.gguf_interleaved or attention.rope is None:
            return stored
        order = half_style_rows(heads, attention.head_dim, attention.rope.rotary_dim)
        return stored[order] if isinstance(stored, Tensor) and stored.dim() == 1 else take_rows(stored, order)

    def _name(self, role: str, layer: int | None) -> str:
        if not self._from_gguf:
            return self._checkpoint.table[role, layer].name
        return stored_name(CheckpointFormat.HF, role, layer, self.family.names)


def refuse_unfit(spec: ModelSpec) -> None:
    if spec.is_encoder or spec.quantisation is not None or BUILDERS.get(spec.architecture) is GptOssDecoder:
        what = "is quantised already" if spec.quantisation is not None else f"is of the kind {spec.architecture}"
        raise UnsupportedFormat(
            f"{spec.name} {what}; `bayard quantize` takes decoders in plain numbers, and GGUF files.",
            "Take the original checkpoint." if spec.quantisation is not None else "Load it as it is.",
        )
    if spec.format is CheckpointFormat.GGUF and spec.architecture not in FROM_GGUF:
        raise UnsupportedFormat(
            f"{spec.name} is a GGUF file of the kind {spec.architecture}; folders are made of {', '.join(FROM_GGUF)}.",
            "Take the Hugging Face folder of the same model.",
        )
