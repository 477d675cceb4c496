"""A decoder's whole step as one program of the CPU library, where that library computes all of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from engine.batch import ForwardBatch
from engine.kernels import registry
from engine.kernels.cpu import abi
from engine.kernels.cpu import ops as cpu_ops
from engine.kernels.cpu.decode import DecodeStep
from engine.kernels.cpu.program import LOGIT_ROWS, LOGITS, Program, ProgramBuilder
from engine.kernels.cpu.weights import PackedWeight, RowTable
from engine.layers.attention import Attention
from engine.layers.linear import Linear
from engine.layers.mlp import GatedMlp

if TYPE_CHECKING:
    from engine.models.decoder import Decoder, DecoderLayer

_PLAIN_OPS = ("rms_norm", "add_rms_norm", "rope", "silu_mul", "kv_write", "paged_attention")
# What a part runs -> how it takes activations.
_LINEAR: dict[Callable[..., Tensor], int] = {
    cpu_ops.linear_exact: abi.EXACT,
    cpu_ops.linear_int8: abi.INT8,
    cpu_ops.linear_bf16: abi.BF16_ROUNDED,
}


class RecordedStep:
    """Runs steps of the decoder it was recorded from. Owner: that decoder, whose weights it points at.

    layer_groups is part of the recording; another one is recorded anew, which takes a millisecond.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._program: Program | None = None
        self._layer_groups: tuple[int, ...] = ()

    def forward(self, batch: ForwardBatch) -> Tensor:
        """-> logits [R, vocab] float32. Mutates: the KV pages of the new tokens"""
        program = self._recorded(tuple(batch.layer_groups))
        logits = torch.empty(batch.logit_rows.shape[0], self._decoder.head.out_features, dtype=torch.float32)
        program.run(batch, logits)
        return logits

    def decode_step(
        self, layer_groups: Sequence[int], kv_views: Sequence[Tensor], *, groups: int, blocks: int, rows: int
    ) -> DecodeStep:
        """Buffers for decode steps of up to `rows` sequences that need no batch to be made of them."""
        vocab = self._decoder.head.out_features
        program = self._recorded(tuple(layer_groups))
        return DecodeStep(program, kv_views, groups=groups, blocks=blocks, vocab=vocab, rows=rows)

    def _recorded(self, layer_groups: tuple[int, ...]) -> Program:
        if self._program is None or layer_groups != self._layer_groups:
            self._program = record(self._decoder, layer_groups)
            self._layer_groups = layer_groups
        return self._program


def can_record(decoder: Decoder) -> bool:
    """Whether every op of the decoder runs in the CPU library, in the order that record() knows."""
    if decoder.streams or not is_plain(decoder):
        return False
    if any(registry.select(op, decoder.ops.query).name != "cpu" for op in _PLAIN_OPS):
        return False
    if decoder.embed.run is not cpu_ops.embedding:
        return False
    linears = [decoder.head]
    for layer in decoder.layers:
        linears += [_paged(layer).qkv, _paged(layer).o, _dense(layer).gate_up, _dense(layer).down]
    return all(part.run in _LINEAR and part.order is None for linear in linears for part in linear.parts)


def is_plain(decoder: Decoder) -> bool:
    """Whether the decoder is built like Llama: norms before, dense MLPs gated by silu, nothing scaled on the way."""
    scaled = any(of != 1.0 for of in (decoder.embed_scale, decoder.residual_scale, decoder.logit_scale))
    if scaled or decoder.logit_softcap or not decoder.layers or not decoder.spec.generates:
        return False
    return all(
        isinstance(layer.mlp, GatedMlp)
        and layer.mlp.gate is decoder.ops.silu_mul
        and isinstance(layer.attention, Attention)
        and not layer.attention.spec.qk_norm_whole
        and not layer.attention.spec.sinks
        and layer.attn_post_norm is None
        and layer.mlp_post_norm is None
        for layer in decoder.layers
    )


def _paged(layer: DecoderLayer) -> Attention:
    assert isinstance(layer.attention, Attention)
    return layer.attention


def _dense(layer: DecoderLayer) -> GatedMlp:
    assert isinstance(layer.mlp, GatedMlp)
    return layer.mlp


def record(decoder: Decoder, layer_groups: tuple[int, ...]) -> Program:
    """The pre-norm step: each norm is part of the projection that reads it, each sum of the one that writes it."""
    b = ProgramBuilder()
    eps = decoder.spec.norm_eps
    hidden = b.slot(decoder.spec.hidden_size)
    wanted = b.slot(decoder.spec.hidden_size)
    qkv = b.slot(max(_paged(layer).qkv.out_features for layer in decoder.layers))
    mixed = b.slot(max(s.attention.num_heads * s.attention.head_dim for s in decoder.spec.layers))
    gate_up = b.slot(max(_dense(layer).gate_up.out_features for layer in decoder.layers))
    table = decoder.embed.packed
    assert isinstance(table, RowTable)
    b.embedding(table, out=hidden)
    for index, layer in enumerate(decoder.layers):
        _linear(b, _paged(layer).qkv, src=hidden, out=qkv, norm=layer.attn_norm, eps=eps)
        _attention(b, layer, qkv=qkv, out=mixed, layer_index=index, group=layer_groups[index])
        _linear(b, _paged(layer).o, src=mixed, out=hidden, residual=hidden)
        _linear(b, _dense(layer).gate_up, src=hidden, out=gate_up, norm=layer.mlp_norm, eps=eps)
        _linear(b, _dense(layer).down, src=gate_up, out=hidden, residual=hidden, gated=True)
    b.gather(src=hidden, out=wanted)
    _linear(b, decoder.head, src=wanted, out=LOGITS, norm=decoder.final_norm, eps=eps, rows=LOGIT_ROWS)
    return b.build()


def _linear(
    b: ProgramBuilder,
    linear: Linear,
    *,
    src: int,
    out: int,
    norm: Tensor | None = None,
    eps: float = 0.0,
    residual: int = abi.NO_SLOT,
    gated: bool = False,
    rows: int = 0,
) -> None:
    column = 0
    for part in linear.parts:
        weight = part.packed
        assert isinstance(weight, PackedWeight)
        b.linear(
            weight,
            part.bias,
            src=src,
            out=out,
            mode=_LINEAR[part.run],
            prepare=abi.RMS_NORM if norm is not None else abi.SILU_MUL if gated else abi.PLAIN,
            norm_weight=norm,
            eps=eps,
            residual=residual,
            rows=rows,
            out_column=column,
        )
        column += weight.shape[0]


def _attention(b: ProgramBuilder, layer: DecoderLayer, *, qkv: int, out: int, layer_index: int, group: int) -> None:
    attention = _paged(layer)
    spec = attention.spec
    b.attention(
        qkv=qkv,
        out=out,
        layer=layer_index,
        group=group,
        heads=spec.num_heads,
        kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        scale=spec.scale,
        cos_sin=attention.cos_sin,
        window_tokens=spec.window_tokens,
        softcap=spec.softcap,
        q_norm=attention.q_norm,
        k_norm=attention.k_norm,
        eps=attention.norm_eps,
        kv_scales=attention.kv_scales,
    )
