"""Programs: a model's whole step recorded as ops over buffers, run by the library in one call.

Record once at load:

    b = ProgramBuilder()
    hidden, qkv = b.slot(hidden_size), b.slot(qkv_width)
    b.embedding(table, out=hidden)
    b.linear(packed, bias, src=hidden, out=qkv, mode=abi.EXACT, prepare=RMS_NORM, norm_weight=w, eps=eps)
    ...
    program = b.build()

then program.run(batch, logits) each step. A slot holds a row a token, or a row a logit row where rows=LOGIT_ROWS.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from engine.kernels.cpu import abi
from engine.kernels.cpu.library import check, load
from engine.kernels.cpu.ops import attention_struct, kv_struct
from engine.kernels.cpu.weights import PackedWeight, RowTable, linear_struct

TOKEN_ROWS, LOGIT_ROWS = 0, 1
LOGITS = abi.LOGITS  # the slot that is the step's result


class StepGroup(Protocol):
    """Page addresses of the layers of one kind; engine.batch.GroupMeta is one."""

    block_tables: Tensor
    write_pages: Tensor
    write_offsets: Tensor


class StepBatch(Protocol):
    """What a step brings; engine.batch.ForwardBatch is one."""

    token_ids: Tensor
    positions: Tensor
    query_starts: Tensor
    context_lens: Tensor
    logit_rows: Tensor

    @property
    def groups(self) -> Sequence[StepGroup]: ...
    @property
    def kv_views(self) -> Sequence[Tensor]: ...


class ProgramBuilder:
    """Records ops in order. Keeps alive what they point at, and hands it to the program."""

    def __init__(self) -> None:
        self._widths: list[int] = []
        self._ops: list[abi.Op] = []
        self._labels: list[str] = []
        self._alive: list[object] = []

    def slot(self, width: int) -> int:
        """A new buffer of so many floats a row."""
        self._widths.append(width)
        return len(self._widths) - 1

    def embedding(self, table: RowTable, *, out: int) -> None:
        self._alive.append(table)
        weight = abi.Weight(
            packed=table.data.data_ptr(), n=table.shape[0], k=table.shape[1], kind=abi.KINDS.index(table.kind)
        )
        self._add("embedding", abi.OP_EMBEDDING, out=out, weight=weight, weight_row_bytes=table.row_bytes)

    def linear(
        self,
        weight: PackedWeight,
        bias: Tensor | None,
        *,
        src: int,
        out: int,
        mode: int,
        prepare: int = abi.PLAIN,
        norm_weight: Tensor | None = None,
        eps: float = 0.0,
        residual: int = abi.NO_SLOT,
        rows: int = TOKEN_ROWS,
        out_column: int = 0,
    ) -> None:
        """out[:, out_column:] = prepare(src) @ weight.T + bias + residual. residual may be out."""
        bias, norm_weight = _vector(bias), _vector(norm_weight)
        self._alive += [weight, bias, norm_weight]
        self._add(
            f"linear {weight.kind} {weight.shape[0]}x{weight.shape[1]}",
            abi.OP_LINEAR,
            in_=src,
            out=out,
            residual=residual,
            rows=rows,
            linear=linear_struct(weight, bias, mode, prepare, norm_weight, eps),
            weight=weight.struct,
            out_column=out_column,
        )

    def norm(self, weight: Tensor, eps: float, *, src: int, out: int, rows: int = TOKEN_ROWS) -> None:
        """RMS norm over the whole width of src."""
        weight = weight.to(torch.float32).contiguous()
        self._alive.append(weight)
        self._add("norm", abi.OP_NORM, in_=src, out=out, rows=rows, norm_weight=weight.data_ptr(), eps=eps)

    def add(self, *, src: int, residual: int, out: int, rows: int = TOKEN_ROWS) -> None:
        self._add("add", abi.OP_ADD, in_=src, residual=residual, out=out, rows=rows)

    def scale(self, factor: float, *, src: int, out: int, rows: int = TOKEN_ROWS) -> None:
        self._add("scale", abi.OP_SCALE, in_=src, out=out, rows=rows, scale=factor)

    def softcap(self, cap: float, *, src: int, out: int, rows: int = TOKEN_ROWS) -> None:
        self._add("softcap", abi.OP_SOFTCAP, in_=src, out=out, rows=rows, scale=cap)

    def gate_mul(self, gate: int, *, src: int, out: int) -> None:
        """out = silu or gelu (gate: abi.SILU_MUL, abi.GELU_MUL) of src's first half times its second."""
        self._add("gate", abi.OP_GATE_MUL, in_=src, out=out, prepare=gate)

    def gather(self, *, src: int, out: int) -> None:
        """out's logit rows = the rows of src that the batch wants logits of."""
        self._add("gather", abi.OP_GATHER, in_=src, out=out, rows=LOGIT_ROWS)

    def attention(
        self,
        *,
        qkv: int,
        out: int,
        layer: int,
        group: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        scale: float,
        cos_sin: Tensor | None,
        window_tokens: int | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
        q_norm: Tensor | None = None,
        k_norm: Tensor | None = None,
        eps: float = 0.0,
        kv_scales: Tensor | None = None,
    ) -> None:
        """Norm and rotate q and k in qkv, write K and V to the layer's pages, attend -> out [T, heads * head_dim]."""
        sinks, q_norm, k_norm, kv_scales = _vector(sinks), _vector(q_norm), _vector(k_norm), _vector(kv_scales)
        table = None if cos_sin is None else cos_sin.contiguous()
        assert table is None or table.dtype is torch.float32
        self._alive += [sinks, q_norm, k_norm, kv_scales, table]
        constants = attention_struct(heads, kv_heads, head_dim, scale, window_tokens, softcap, sinks)
        self._add(
            "rope_kv",
            abi.OP_ROPE_KV,
            in_=qkv,
            layer=layer,
            group=group,
            attention=constants,
            norm_weight=None if q_norm is None else q_norm.data_ptr(),
            norm_weight_k=None if k_norm is None else k_norm.data_ptr(),
            cos_sin=None if table is None else table.data_ptr(),
            cos_rows=0 if table is None else table.shape[0],
            rotary=0 if table is None else table.shape[1],
            kv_scales=None if kv_scales is None else kv_scales.data_ptr(),
            eps=eps,
        )
        self._add("attention", abi.OP_ATTENTION, in_=qkv, out=out, layer=layer, group=group, attention=constants)

    def build(self) -> Program:
        """Raises: WorkerError if an op's sizes do not fit its slots."""
        return Program(self._widths, self._ops, self._labels, self._alive)

    def _add(self, label: str, code: int, *, residual: int = abi.NO_SLOT, **fields: object) -> None:
        self._ops.append(abi.Op(code=code, residual=residual, **fields))
        self._labels.append(label)


class Program:
    """A recorded step. run is not re-entrant. Owner: the model that recorded it."""

    def __init__(self, widths: list[int], ops: list[abi.Op], labels: list[str], alive: list[object]) -> None:
        self.labels = tuple(labels)
        self._alive = alive
        self._handle = ctypes.c_void_p()
        self._kv: ctypes.Array[abi.Kv] | None = None
        self._views: Sequence[Tensor] | None = None
        slots = (ctypes.c_int64 * len(widths))(*widths)
        recorded = (abi.Op * len(ops))(*ops)
        code = load().bayard_program_create(slots, len(widths), recorded, len(ops), ctypes.byref(self._handle))
        check(code, f"recording a program of {len(ops)} ops")

    def __del__(self) -> None:
        if self._handle:
            load().bayard_program_free(self._handle)

    @property
    def handle(self) -> ctypes.c_void_p:
        return self._handle

    @property
    def num_bytes(self) -> int:
        """Memory of the buffers; it grows to what the largest step needed."""
        return int(load().bayard_program_bytes(self._handle))

    def run(self, batch: StepBatch, logits: Tensor, argmax: Tensor | None = None) -> None:
        """Run one step.

        Shapes: logits [R, V] float32; argmax [R] int64, also the place of each row's largest logit (-1: not finite)
        Mutates: logits, argmax, the KV pages of the new tokens
        Blocks: until done, without the GIL
        """
        groups = [_group(g) for g in batch.groups]
        held = [_ids(batch.token_ids), _ids(batch.positions), _ids(batch.logit_rows)]
        starts, contexts = _ints(batch.query_starts), _ints(batch.context_lens)
        kv = self.kv_structs(batch.kv_views)
        assert logits.dtype is torch.float32
        assert logits.stride(-1) == 1
        step = abi.Step(
            tokens=held[0].shape[0],
            sequences=contexts.shape[0],
            logit_count=held[2].shape[0],
            token_ids=held[0].data_ptr(),
            positions=held[1].data_ptr(),
            query_starts=starts.data_ptr(),
            context_lens=contexts.data_ptr(),
            logit_rows=held[2].data_ptr(),
            groups=(abi.Group * len(groups))(*[g for g, _ in groups]),
            kv=kv,
            num_groups=len(groups),
            num_kv=len(kv),
            logits=logits.data_ptr(),
            logits_stride=logits.stride(0),
            argmax=None if argmax is None else argmax.data_ptr(),
        )
        check(load().bayard_program_run(self._handle, ctypes.byref(step)), f"a step of {step.tokens} tokens")

    def profile(self, on: bool) -> list[tuple[str, int]]:
        """Nanoseconds of each op in the last run made while profiling was on; then turns it on or off."""
        taken = (ctypes.c_int64 * len(self.labels))()
        check(load().bayard_program_profile(self._handle, int(on), taken, len(self.labels)), "profiling")
        return list(zip(self.labels, taken, strict=True))

    def kv_structs(self, views: Sequence[Tensor]) -> ctypes.Array[abi.Kv]:
        """The C form of each layer's pages; of the same sequence the same ones."""
        if self._kv is None or views is not self._views:
            self._kv = (abi.Kv * len(views))(*[kv_struct(view) for view in views])
            self._views = views
        return self._kv


def _vector(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.to(torch.float32).contiguous()


def _ids(x: Tensor) -> Tensor:
    return x if x.dtype is torch.int64 and x.is_contiguous() else x.to(torch.int64).contiguous()


def _ints(x: Tensor) -> Tensor:
    return x if x.dtype is torch.int32 and x.is_contiguous() else x.to(torch.int32).contiguous()


def _group(group: StepGroup) -> tuple[abi.Group, list[Tensor]]:
    """The C form of a group, and the tensors it points at."""
    tables = _ints(group.block_tables)
    pages, offsets = _ids(group.write_pages), _ids(group.write_offsets)
    struct = abi.Group(
        block_tables=tables.data_ptr(),
        table_stride=tables.stride(0),
        table_width=tables.shape[1],
        write_pages=pages.data_ptr(),
        write_offsets=offsets.data_ptr(),
    )
    return struct, [tables, pages, offsets]
