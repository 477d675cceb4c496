"""Encoder: BERT and its kind, from a batch of texts to one vector a text. It keeps no state between batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.devices.upload import reading_ahead
from engine.errors import UnsupportedFormat
from engine.kernels.registry import OpQuery
from engine.layers.linear import Linear
from engine.layers.ops import Ops
from engine.layers.pooling import Pool
from engine.layers.text_attention import TextBlock, attend, blocks_of
from engine.layers.weight import Weight, narrowed, numbers
from engine.models.checkpoint import MappedCheckpoint, Progress, check_size
from engine.models.loading import op_query
from engine.spec.model_spec import AttentionSpec, LayerSpec, ModelSpec

_WITHOUT_PAGES = ("linear", "embedding")  # the ops of the registry that an encoder uses


@dataclass(frozen=True, slots=True)
class EncoderLayer:
    attention: AttentionSpec
    qkv: Linear
    o: Linear
    attn_norm: Callable[[Tensor], Tensor]
    up: Linear
    down: Linear
    mlp_norm: Callable[[Tensor], Tensor]
    activation: Callable[[Tensor], Tensor]

    def __call__(self, x: Tensor, blocks: Sequence[TextBlock]) -> Tensor:
        """Shapes: x [T, hidden] -> [T, hidden]"""
        spec = self.attention
        x = self.attn_norm(x + self.o(attend(self.qkv(x), blocks, spec.num_heads, spec.scale)))
        return self.mlp_norm(x + self.down(self.activation(self.up(x))))


class Encoder:
    """Owner of the weights."""

    def __init__(
        self,
        spec: ModelSpec,
        checkpoint: MappedCheckpoint,
        device: torch.device,
        dtype: torch.dtype,
        query: OpQuery,
    ) -> None:
        assert spec.pooling is not None, spec.name
        self.spec = spec
        self.device = device
        self.dtype = dtype
        self._ops = Ops(query)
        self._checkpoint = checkpoint
        self._pool = Pool(spec.pooling.kind)
        self._words = self._ops.embedding(self._matrix("embed"))
        positions = numbers(checkpoint.matrix("position_embed")).to(device, torch.float32)
        kinds = numbers(checkpoint.matrix("type_embed")).to(device, torch.float32)
        last = spec.first_position + spec.max_context_tokens
        # Every token of a text is of the first kind, so its row is part of the positions'.
        self._positions = (positions[spec.first_position : last] + kinds[0]).to(dtype)
        self._norm = self._layer_norm("embed_norm", None)
        checkpoint.release()
        self._layers = [self._layer(layer) for layer in spec.layers]
        self.kernels = {op: why for op, why in self._ops.kernels.items() if op.split()[0] in _WITHOUT_PAGES}
        self.notes: list[str] = []

    @torch.inference_mode()
    def embed(self, texts: Sequence[Sequence[int]]) -> Tensor:
        """One vector of length one a text. Neighbours of like lengths are computed with the least padding.

        Shapes: -> [len(texts), hidden] float32
        """
        lengths = [len(text) for text in texts]
        token_ids = torch.tensor([token for text in texts for token in text], device=self.device)
        places = torch.cat([torch.arange(length) for length in lengths]).to(self.device)
        blocks = blocks_of(lengths, self.device)
        x = self._norm(self._words(token_ids, self.dtype) + self._positions[places])
        for layer in self._layers:
            x = layer(x, blocks)
        return self._pool(x, lengths)

    def _layer(self, layer: LayerSpec) -> EncoderLayer:
        i = layer.index
        made = EncoderLayer(
            attention=layer.attention,
            qkv=self._projection(["attn_q", "attn_k", "attn_v"], i),
            o=self._projection(["attn_o"], i),
            attn_norm=self._layer_norm("attn_norm", i),
            up=self._projection(["mlp_up"], i),
            down=self._projection(["mlp_down"], i),
            mlp_norm=self._layer_norm("mlp_norm", i),
            activation=F.gelu if layer.mlp.activation == "gelu" else _gelu_tanh,
        )
        self._checkpoint.release()
        return made

    def _projection(self, roles: list[str], layer: int) -> Linear:
        weights = [self._matrix(role, layer) for role in roles]
        return self._ops.linear(weights, [self._vector(f"{role}_bias", layer) for role in roles])

    def _layer_norm(self, role: str, layer: int | None) -> Callable[[Tensor], Tensor]:
        weight, bias = self._vector(role, layer), self._vector(f"{role}_bias", layer)
        return lambda x: F.layer_norm(x, weight.shape, weight, bias, self.spec.norm_eps)

    def _matrix(self, role: str, layer: int | None = None) -> Weight:
        there = narrowed(self._checkpoint.matrix(role, layer), self.device, self.dtype)
        self._checkpoint.doubt(there, role, layer)
        return there

    def _vector(self, role: str, layer: int | None) -> Tensor:
        return self._checkpoint.vector(role, layer, self.device, self.dtype)


def load_encoder(
    spec: ModelSpec,
    device: torch.device,
    dtype: torch.dtype,
    progress: Progress,
    *,
    activation: str = "exact",
    capabilities: frozenset[str] = frozenset(),
) -> Encoder:
    """As load_model, for a spec that is an encoder.

    Blocks: for as long as the disk takes
    Raises: UnsupportedFormat, ConfigError
    """
    if not spec.is_encoder or spec.pooling is None:
        raise UnsupportedFormat(f"{spec.name} is no encoder with a pooling.")
    check_size(spec)
    query = op_query(spec, device, dtype, None, activation, capabilities)
    with reading_ahead(device) as read_ahead:
        checkpoint = MappedCheckpoint(spec, progress)
        read_ahead(checkpoint.coming())
        encoder = Encoder(spec, checkpoint, device, dtype, query)
        checkpoint.settle()
        return encoder


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")
