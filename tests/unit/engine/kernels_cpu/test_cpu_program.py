"""Programs: a recorded step gives what its ops give one by one, and refuses what does not fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.errors import WorkerError
from engine.kernels.cpu import abi, library, ops, weights
from engine.kernels.cpu.program import LOGIT_ROWS, LOGITS, Program, ProgramBuilder

HEADS, KV_HEADS, DIM, HIDDEN, INNER, VOCAB, PAGE = 4, 2, 16, 64, 96, 50, 8


@dataclass
class Group:
    block_tables: Tensor
    write_pages: Tensor
    write_offsets: Tensor


@dataclass
class Batch:
    token_ids: Tensor
    positions: Tensor
    query_starts: Tensor
    context_lens: Tensor
    logit_rows: Tensor
    groups: list[Group]
    kv_views: list[Tensor] = field(default_factory=list)


def batch(sequences: list[tuple[int, int]], views: list[Tensor], pages_each: int = 8) -> Batch:
    """Sequences of (first position, new tokens); every row's logits are wanted."""
    positions = [first + i for first, count in sequences for i in range(count)]
    owners = [row for row, (_, count) in enumerate(sequences) for _ in range(count)]
    tables = torch.arange(len(sequences) * pages_each, dtype=torch.int32).view(-1, pages_each)
    pages = [int(tables[o, p // PAGE]) for o, p in zip(owners, positions, strict=True)]
    g = torch.Generator().manual_seed(len(positions))
    return Batch(
        torch.randint(0, VOCAB, (len(positions),), generator=g),
        torch.tensor(positions),
        torch.tensor([0] + [count for _, count in sequences]).cumsum(0).to(torch.int32),
        torch.tensor([first + count for first, count in sequences], dtype=torch.int32),
        torch.arange(len(positions)),
        [Group(tables, torch.tensor(pages), torch.tensor([p % PAGE for p in positions]))],
        views,
    )


class TinyModel:
    """One layer with everything a program knows: biases, head norms, a window, parts side by side, tied scales."""

    def __init__(self, random_weight: Callable[..., Any]) -> None:
        torch.manual_seed(7)
        self.table = weights.keep_rows(random_weight("Q8_0", VOCAB, HIDDEN).stored)
        self.q = weights.pack(random_weight("Q4_1", HEADS * DIM, HIDDEN, seed=1).stored)
        self.kv = weights.pack(random_weight("Q8_0", 2 * KV_HEADS * DIM, HIDDEN, seed=2).stored)
        self.o = weights.pack(random_weight("Q5_0", HIDDEN, HEADS * DIM, seed=3).stored)
        self.gate_up = weights.pack(random_weight("Q4_0", 2 * INNER, HIDDEN, seed=4).stored)
        self.down = weights.pack(random_weight("Q8_0", HIDDEN, INNER, seed=5).stored)
        self.head = weights.pack(random_weight("BF16", VOCAB, HIDDEN, seed=6).stored)
        self.bias = torch.randn(HEADS * DIM)
        self.norms = [torch.rand(HIDDEN) + 0.5 for _ in range(3)]
        self.q_norm, self.k_norm = torch.rand(DIM) + 0.5, torch.rand(DIM) + 0.5
        self.cos_sin = torch.randn(64, DIM)
        self.eps, self.scale, self.window = 1e-5, 0.25, 11

    def record(self, int8: bool) -> Program:
        b = ProgramBuilder()
        hidden, qkv, mixed = b.slot(HIDDEN), b.slot((HEADS + 2 * KV_HEADS) * DIM), b.slot(HEADS * DIM)
        gate_up, wanted, spare = b.slot(2 * INNER), b.slot(HIDDEN), b.slot(HIDDEN)
        b.embedding(self.table, out=hidden)
        b.scale(8.0, src=hidden, out=hidden)
        mode = abi.INT8 if int8 else abi.EXACT
        normed: dict[str, Any] = {"prepare": abi.RMS_NORM, "eps": self.eps, "mode": mode}
        b.linear(self.q, self.bias, src=hidden, out=qkv, norm_weight=self.norms[0], **normed)
        column = HEADS * DIM
        b.linear(self.kv, None, src=hidden, out=qkv, norm_weight=self.norms[0], out_column=column, **normed)
        b.attention(
            qkv=qkv,
            out=mixed,
            layer=0,
            group=0,
            heads=HEADS,
            kv_heads=KV_HEADS,
            head_dim=DIM,
            scale=self.scale,
            cos_sin=self.cos_sin,
            window_tokens=self.window,
            q_norm=self.q_norm,
            k_norm=self.k_norm,
            eps=self.eps,
        )
        b.linear(self.o, None, src=mixed, out=hidden, residual=hidden, mode=mode)
        b.linear(self.gate_up, None, src=hidden, out=gate_up, norm_weight=self.norms[1], **normed)
        b.linear(self.down, None, src=gate_up, out=spare, prepare=abi.SILU_MUL, mode=mode)
        b.add(src=spare, residual=hidden, out=hidden)
        b.gather(src=hidden, out=wanted)
        b.norm(self.norms[2], self.eps, src=wanted, out=wanted, rows=LOGIT_ROWS)
        b.linear(self.head, None, src=wanted, out=LOGITS, mode=mode, rows=LOGIT_ROWS)
        b.softcap(20.0, src=LOGITS, out=LOGITS, rows=LOGIT_ROWS)
        return b.build()

    def one_by_one(self, step: Batch, int8: bool) -> Tensor:
        linear = ops.linear_int8 if int8 else ops.linear_exact
        hidden = ops.embedding(step.token_ids, self.table, torch.float32) * 8.0
        x = ops.rms_norm(hidden, self.norms[0], self.eps)
        heads = torch.cat((linear(x, self.q, self.bias), linear(x, self.kv)), dim=1).view(x.shape[0], -1, DIM)
        q, k, v = heads.split((HEADS, KV_HEADS, KV_HEADS), dim=1)
        q, k = ops.rms_norm(q, self.q_norm, self.eps), ops.rms_norm(k, self.k_norm, self.eps)
        ops.rope(q, k, step.positions, self.cos_sin)
        group = step.groups[0]
        ops.kv_write(k, v, step.kv_views[0], group.write_pages, group.write_offsets)
        tables = (group.block_tables, step.query_starts, step.context_lens)
        mixed = ops.paged_attention(q, step.kv_views[0], *tables, self.scale, self.window)
        hidden = linear(mixed.flatten(1), self.o) + hidden
        gate_up = linear(ops.rms_norm(hidden, self.norms[1], self.eps), self.gate_up)
        hidden = linear(ops.silu_mul(gate_up), self.down) + hidden
        wanted = ops.rms_norm(hidden[step.logit_rows], self.norms[2], self.eps)
        return 20.0 * torch.tanh(linear(wanted, self.head) / 20.0)


def fresh_views() -> list[Tensor]:
    return [torch.zeros(32, 2, KV_HEADS, PAGE, DIM, dtype=torch.float16)]


@pytest.fixture
def tiny(random_weight: Callable[..., Any]) -> TinyModel:
    return TinyModel(random_weight)


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("threads", [1, 3])
def test_program_equals_its_ops_one_by_one(tiny: TinyModel, int8: bool, threads: int) -> None:
    program, was = tiny.record(int8), library.threads()
    ours, theirs = fresh_views(), fresh_views()
    try:
        library.set_threads(threads)
        for sequences in ([(0, 17), (0, 1)], [(17, 1), (1, 30)], [(18, 1), (31, 1)], [(0, 3)]):
            step = batch(sequences, ours)
            logits = torch.empty(len(step.token_ids), VOCAB)
            program.run(step, logits)
            truth = tiny.one_by_one(batch(sequences, theirs), int8)
            assert torch.allclose(logits, truth, atol=1e-5, rtol=1e-5)  # tanh is the C library's
            assert ours[0].equal(theirs[0])
    finally:
        library.set_threads(was)


def test_program_row_is_bit_identical_in_chunks_and_in_company(tiny: TinyModel) -> None:
    program = tiny.record(int8=True)
    whole, views = torch.empty(25, VOCAB), fresh_views()
    step = batch([(0, 25)], views)
    program.run(step, whole)
    parts, views = [], fresh_views()
    for first, count in ((0, 1), (1, 16), (17, 7), (24, 1)):
        part = batch([(first, count), (0, 2)], views)
        part.token_ids[:count] = step.token_ids[first : first + count]
        part.logit_rows = torch.arange(count)
        logits = torch.empty(count, VOCAB)
        program.run(part, logits)
        parts.append(logits)
    assert torch.cat(parts).equal(whole)


def test_program_argmax_is_that_of_its_logits(tiny: TinyModel) -> None:
    program = tiny.record(int8=False)
    logits, places = torch.empty(5, VOCAB), torch.empty(5, dtype=torch.int64)
    program.run(batch([(0, 5)], fresh_views()), logits, places)
    assert places.equal(logits.argmax(dim=1))
    tiny.norms[2][0] = float("nan")
    tiny.record(int8=False).run(batch([(0, 5)], fresh_views()), logits, places)
    assert places.eq(-1).all()


def test_program_without_wanted_rows_still_writes_pages(tiny: TinyModel) -> None:
    views = fresh_views()
    step = batch([(0, 5)], views)
    step.logit_rows = torch.empty(0, dtype=torch.int64)
    tiny.record(int8=False).run(step, torch.empty(0, VOCAB))
    assert views[0].count_nonzero() > 0


@pytest.mark.parametrize("wrong", ["token", "position", "page", "row", "view"])
def test_program_step_out_of_range_is_refused_before_anything_is_written(tiny: TinyModel, wrong: str) -> None:
    views = fresh_views()
    step = batch([(0, 5)], views)
    if wrong == "token":
        step.token_ids[3] = VOCAB
    elif wrong == "position":
        step.positions[2] = 64
    elif wrong == "page":
        step.groups[0].write_pages[0] = 32
    elif wrong == "row":
        step.logit_rows[0] = 5
    else:
        step.kv_views = []
    with pytest.raises(WorkerError, match="out of range"):
        tiny.record(int8=False).run(step, torch.empty(5, VOCAB))
    assert views[0].count_nonzero() == 0


def test_program_op_wider_than_its_slot_is_refused(random_weight: Callable[..., Any]) -> None:
    b = ProgramBuilder()
    narrow, wide = b.slot(32), b.slot(64)
    b.linear(weights.pack(random_weight("F32", 64, 64).stored), None, src=wide, out=narrow, mode=abi.EXACT)
    with pytest.raises(WorkerError, match="do not fit"):
        b.build()


def test_program_profile_names_each_op(tiny: TinyModel) -> None:
    program = tiny.record(int8=False)
    program.profile(on=True)
    program.run(batch([(0, 5)], fresh_views()), torch.empty(5, VOCAB))
    taken = program.profile(on=False)
    assert [label for label, _ in taken][:2] == ["embedding", "scale"]
    assert sum(ns for _, ns in taken) > 0
    assert program.num_bytes > 0


def test_gelu_gate_equals_torchs_tanh_form(each_isa: Callable[..., Any]) -> None:
    pair = torch.randn(3, 2 * 37) * 4
    gate, up = pair.chunk(2, dim=1)
    truth = torch.nn.functional.gelu(gate.double(), approximate="tanh") * up.double()
    for _ in each_isa():
        out = torch.empty(3, 37)
        code = library.load().bayard_gate_mul(abi.GELU_MUL, pair.data_ptr(), 74, 3, 37, out.data_ptr(), 37)
        assert code == 0
        assert torch.allclose(out.double(), truth, atol=2e-6, rtol=2e-6)
