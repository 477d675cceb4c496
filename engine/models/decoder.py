"""Decoder: the pre-norm transformer that most families are, built from a ModelSpec and its tensors by role."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.batch import ForwardBatch
from engine.kernels.registry import OpQuery
from engine.layers.attention import Attention
from engine.layers.linear import Linear
from engine.layers.mlp import GatedMlp
from engine.layers.ops import Ops
from engine.layers.rope import rope_table
from engine.layers.weight import Weight, half_style_rows, take_rows
from engine.models.checkpoint import MappedCheckpoint
from engine.models.recorded import RecordedStep, can_record
from engine.quant.quant_tensor import QuantTensor
from engine.spec.families import family_of
from engine.spec.model_spec import AttentionSpec, CheckpointFormat, LayerSpec, ModelSpec, RopeSpec


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    attn_norm: Tensor
    attention: Attention
    mlp_norm: Tensor
    mlp: GatedMlp


class Decoder:
    """Owner of the weights. forward is not re-entrant: one step at a time."""

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
        self._checkpoint = checkpoint
        self._max_context_tokens = max_context_tokens
        self._ropes: dict[RopeSpec, Tensor] = {}
        self._interleaved = spec.format is CheckpointFormat.GGUF and family_of(spec.architecture).gguf_interleaved
        self.ops = Ops(query)
        embed = self._matrix("embed")
        self.embed = self.ops.embedding(embed)
        head = embed if spec.tie_embeddings else self._matrix("lm_head")
        self.head = self.ops.linear([head], [None])
        del embed, head
        checkpoint.release()
        self.layers = [self._layer(layer) for layer in spec.layers]
        self.final_norm = self._vector("final_norm")
        checkpoint.release()
        del self._checkpoint
        self.kernels = self.ops.kernels
        self.notes = self.ops.notes()
        self._recorded = RecordedStep(self) if can_record(self) else None

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch) -> Tensor:
        """Run one step.

        Shapes: -> [R, vocab] float32, the rows batch.logit_rows asks for
        Mutates: the KV pages of the new tokens
        """
        if self._recorded is not None:
            return self._recorded.forward(batch)
        ops, eps = self.ops, self.spec.norm_eps
        residual = self.embed(batch.token_ids, self.dtype)
        x = ops.rms_norm(residual, self.layers[0].attn_norm, eps)
        for index, layer in enumerate(self.layers):
            if index:
                x, residual = ops.add_rms_norm(x, residual, layer.attn_norm, eps)
            x = layer.attention(x, batch)
            x, residual = ops.add_rms_norm(x, residual, layer.mlp_norm, eps)
            x = layer.mlp(x)
        if batch.logit_rows.shape[0] == 0:
            return torch.empty(0, self.spec.vocab_size, dtype=torch.float32, device=x.device)
        x, _ = ops.add_rms_norm(x[batch.logit_rows], residual[batch.logit_rows], self.final_norm, eps)
        return self.head(x).to(torch.float32)

    def _layer(self, layer: LayerSpec) -> DecoderLayer:
        i, spec = layer.index, layer.attention
        inputs = ["attn_q", "attn_k", "attn_v"]
        built = DecoderLayer(
            attn_norm=self._vector("attn_norm", i),
            attention=Attention(
                spec=spec,
                layer=i,
                ops=self.ops,
                qkv=self._projection(inputs, i, spec),
                o=self._projection(["attn_o"], i),
                cos_sin=self._rope(spec.rope),
                q_norm=self._vector("attn_q_norm", i) if spec.qk_norm else None,
                k_norm=self._vector("attn_k_norm", i) if spec.qk_norm else None,
                norm_eps=self.spec.norm_eps,
            ),
            mlp_norm=self._vector("mlp_norm", i),
            mlp=GatedMlp(self.ops, self._projection(["mlp_gate", "mlp_up"], i), self._projection(["mlp_down"], i)),
        )
        self._checkpoint.release()
        return built

    def _projection(self, roles: list[str], layer: int, rotary: AttentionSpec | None = None) -> Linear:
        """The matrices of some roles side by side; rotary heads stored interleaved are put in half style."""
        weights = [self._matrix(role, layer) for role in roles]
        biases = [
            self._vector(f"{role}_bias", layer, self.dtype) if (f"{role}_bias", layer) in self._checkpoint else None
            for role in roles
        ]
        if rotary is not None and rotary.rope is not None and self._interleaved:
            for index, heads in enumerate((rotary.num_heads, rotary.num_kv_heads)):
                rows = half_style_rows(heads, rotary.head_dim).to(self.device)
                weights[index] = take_rows(weights[index], rows)
                bias = biases[index]
                biases[index] = None if bias is None else bias[rows]
        return self.ops.linear(weights, biases)

    def _matrix(self, role: str, layer: int | None = None) -> Weight:
        """A weight on its device: quantised as stored, plain no wider than the activations."""
        stored = self._checkpoint.matrix(role, layer)
        if isinstance(stored, QuantTensor):
            return stored.to(self.device)
        keep = stored.dtype.itemsize < self.dtype.itemsize or stored.dtype == self.dtype
        return stored.to(self.device) if keep else stored.to(device=self.device, dtype=self.dtype)

    def _vector(self, role: str, layer: int | None = None, dtype: torch.dtype = torch.float32) -> Tensor:
        return self._checkpoint.vector(role, layer, self.device, dtype)

    def _rope(self, rope: RopeSpec | None) -> Tensor | None:
        """The rotary table; layers with the same rotation share one."""
        if rope is None:
            return None
        if rope not in self._ropes:
            factors = self._vector("rope_factors") if rope.scaling_kind == "factors" else None
            self._ropes[rope] = rope_table(rope, self._max_context_tokens, self.device, factors)
        return self._ropes[rope]
