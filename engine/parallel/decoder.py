"""RankDecoder: one rank's share of a Decoder, which sums with the other ranks after attention and after the MLP."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from engine.kernels.registry import OpQuery
from engine.layers.attention import Attention
from engine.layers.linear import Linear, LinearPart
from engine.layers.mlp import GatedMlp
from engine.models.decoder import Decoder, DecoderLayer
from engine.models.parts import Parts
from engine.parallel.checkpoint import ShardedCheckpoint
from engine.parallel.group import RankGroup
from engine.parallel.shards import for_rank
from engine.spec.model_spec import ModelSpec


class RankDecoder(Decoder):
    """A Model whose spec is the rank's own: its pages hold the rank's KV heads. Embedding and head are whole on each.

    All ranks must run the same batches; each of them gets all logits. spec: the whole model's
    """

    def __init__(
        self,
        spec: ModelSpec,
        checkpoint: ShardedCheckpoint,
        group: RankGroup,
        device: torch.device,
        dtype: torch.dtype,
        query: OpQuery,
        max_context_tokens: int,
    ) -> None:
        assert checkpoint.shard == group.shard, (checkpoint.shard, group.shard)
        self.group = group
        super().__init__(for_rank(spec, group.shard), checkpoint, device, dtype, query, max_context_tokens)
        self.replayable = False  # a recorded step would hold an exchange that has not been proven to replay

    def _load_layers(self, parts: Parts) -> None:
        super()._load_layers(parts)
        self.layers = [_summing(layer, self.group) for layer in self.layers]


def _summing(layer: DecoderLayer, group: RankGroup) -> DecoderLayer:
    attention, mlp = layer.attention, layer.mlp
    assert isinstance(attention, Attention)
    assert isinstance(mlp, GatedMlp)
    return replace(
        layer,
        attention=replace(attention, o=_summed(attention.o, group)),
        mlp=replace(mlp, down=_summed(mlp.down, group)),
    )


def _summed(linear: Linear, group: RankGroup) -> Linear:
    (part,) = linear.parts

    def run(x: Tensor, packed: Any, bias: Tensor | None) -> Tensor:
        return group.all_reduce(part.run(x, packed, bias))

    return Linear([LinearPart(run, part.packed, part.bias, part.order)], linear.out_features)
