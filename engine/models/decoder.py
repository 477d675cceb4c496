"""Decoder: the transformer that most families are, built from a ModelSpec and its tensors by role."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from engine.batch import ForwardBatch
from engine.kernels.registry import OpQuery
from engine.layers.attention import Attention
from engine.layers.coded_input import add_norm_into, norm_into
from engine.layers.experts import ExpertsMlp
from engine.layers.latent_attention import LatentAttention
from engine.layers.mlp import GatedMlp
from engine.layers.ops import Ops
from engine.models.checkpoint import MappedCheckpoint
from engine.models.parts import Parts
from engine.models.recorded import RecordedStep, can_record
from engine.models.streamed_layers import StreamedLayers
from engine.spec.family import Norms
from engine.spec.model_spec import LayerSpec, ModelSpec

LayerT = TypeVar("LayerT")


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    attn_norm: Tensor
    attention: Attention | LatentAttention
    mlp_norm: Tensor
    mlp: GatedMlp | ExpertsMlp
    attn_post_norm: Tensor | None = None
    mlp_post_norm: Tensor | None = None


class Decoder:
    """Owner of the weights. forward is not re-entrant: one step at a time."""

    parts_of: type[Parts] = Parts
    streams = False  # whether it has one layer at a time: see StreamedLayers

    def __init__(
        self,
        spec: ModelSpec,
        checkpoint: MappedCheckpoint,
        device: torch.device,
        dtype: torch.dtype,
        query: OpQuery,
        max_context_tokens: int,
    ) -> None:
        self.spec = spec
        self.device = device
        self.dtype = dtype
        self.ops = Ops(query)
        scalars = dict(spec.extra)
        self.embed_scale = float(torch.tensor(scalars.pop("embed_scale", 1.0), dtype=dtype))
        self.residual_scale = scalars.pop("residual_scale", 1.0)
        self.logit_scale = scalars.pop("logit_scale", 1.0)
        self.logit_softcap = scalars.pop("logit_softcap", 0.0)
        assert not scalars, scalars
        parts = self.parts_of(spec, checkpoint, device, dtype, self.ops, max_context_tokens)
        self.embed, self.head = parts.embedding_and_head()
        checkpoint.release()
        self.layers: Sequence[DecoderLayer] = []
        self._load_layers(parts)
        self.final_norm = parts.norm("final_norm")
        checkpoint.release()
        self.adapters = checkpoint.adapters
        if self.adapters is not None:
            self.adapters.check_all_used()
        if checkpoint.packed is not None:
            self.ops.held |= checkpoint.packed.held
            checkpoint.packed.finish(self.ops.held)
            self.ops.kernels["packed weights"] = checkpoint.packed.told
        self.kernels = self.ops.kernels
        self.replayable = spec.generates and not self.ops.asks_device
        self.captured_rows = self.ops.captured_rows
        self.notes = self.ops.notes()
        self.recorded = RecordedStep(self) if can_record(self) else None  # a whole step in one call

    def _load_layers(self, parts: Parts) -> None:
        self.layers = self.in_order(parts, _layer)

    def in_order(self, parts: Parts, make: Callable[[Parts, LayerSpec], LayerT]) -> Sequence[LayerT]:
        """Every layer made; where the decoder streams, each as it is held."""

        def made(layer: LayerSpec) -> LayerT:
            found = make(parts, layer)
            parts.checkpoint.release()
            return found

        return StreamedLayers(self.spec.layers, made) if self.streams else [made(layer) for layer in self.spec.layers]

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch) -> Tensor:
        """Run one step.

        Shapes: -> [R, vocab] float32, the rows batch.logit_rows asks for
        Mutates: the KV pages of the new tokens
        """
        if self.recorded is not None and batch.adapters is None:
            return self.recorded.forward(batch)
        if batch.logit_rows.shape[0] == 0:
            self._stream(batch)
            return torch.empty(0, self.spec.vocab_size, dtype=torch.float32, device=batch.token_ids.device)
        return self.logits(self.hidden(batch))

    @torch.inference_mode()
    def hidden(self, batch: ForwardBatch) -> Tensor:
        """Run one step as far as the last norm.

        Shapes: -> [R, hidden], the rows batch.logit_rows asks for
        Mutates: the KV pages of the new tokens
        """
        x, residual = self._stream(batch)
        rows = batch.logit_rows
        x, _ = self.ops.add_rms_norm(x[rows], residual[rows], self.final_norm, self.spec.norm_eps)
        return x

    @torch.inference_mode()
    def logits(self, states: Tensor) -> Tensor:
        """Shapes: states [R, hidden], as hidden gives them -> [R, vocab] float32"""
        logits = self.head(states).to(torch.float32)
        if self.logit_scale != 1.0:
            logits = logits * self.logit_scale
        return torch.tanh(logits / self.logit_softcap) * self.logit_softcap if self.logit_softcap else logits

    def _stream(self, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        """The new tokens through all layers, as _through_layers gives them."""
        if self.adapters is not None:
            self.adapters.rows.rows = batch.adapters
        return self._through_layers(self._embedded(batch), batch)  # who alone holds the stream, which is long

    def _embedded(self, batch: ForwardBatch) -> Tensor:
        embedded: Tensor = self.embed(batch.token_ids, self.dtype)
        return embedded if self.embed_scale == 1.0 else embedded * self.embed_scale

    def _through_layers(self, residual: Tensor, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        """Shapes: residual [T, hidden] -> what the last layer adds, and what it adds it to, both [T, hidden]"""
        ops, eps, scale = self.ops, self.spec.norm_eps, self.residual_scale
        x = residual
        for index, layer in enumerate(self.layers):
            entry = layer.attention.entry
            if index:
                normed, residual = add_norm_into(ops.add_rms_norm, entry, x, residual, layer.attn_norm, eps)
            else:
                normed = norm_into(ops.rms_norm, entry, x, layer.attn_norm, eps)
            x = layer.attention(normed, batch)
            if layer.attn_post_norm is not None:
                x = ops.rms_norm(x, layer.attn_post_norm, eps)
            if scale != 1.0:
                x = x * scale
            normed, residual = add_norm_into(ops.add_rms_norm, layer.mlp.entry, x, residual, layer.mlp_norm, eps)
            x = layer.mlp(normed)
            if layer.mlp_post_norm is not None:
                x = ops.rms_norm(x, layer.mlp_post_norm, eps)
            if scale != 1.0:
                x = x * scale
        return x, residual


def _layer(parts: Parts, layer: LayerSpec) -> DecoderLayer:
    i = layer.index
    both = parts.family.norms is Norms.BOTH
    return DecoderLayer(
        attn_norm=parts.norm("attn_norm", i),
        attention=parts.attention(layer),
        mlp_norm=parts.norm("mlp_norm", i),
        mlp=parts.mlp(layer),
        attn_post_norm=parts.norm("attn_post_norm", i) if both else None,
        mlp_post_norm=parts.norm("mlp_post_norm", i) if both else None,
    )
