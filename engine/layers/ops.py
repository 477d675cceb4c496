"""Ops: the kernels one model runs with, chosen once at load and remembered with the reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from engine.kernels import registry
from engine.kernels.registry import CodedInput, Implementation, OpQuery
from engine.layers.embedding import Embedding
from engine.layers.experts import ExpertKernels
from engine.layers.linear import Linear, LinearPart
from engine.layers.weight import Weight, decoded, kind_of, stack_rows, together
from engine.quant.coded_tensor import CodedTensor
from engine.quant.expert_stack import ExpertStack


class Ops:
    """What layers call. Built from one query that says the device and the types. Owner: the model that is loaded."""

    def __init__(self, query: OpQuery) -> None:
        self.query = query
        self.kernels: dict[str, str] = {}  # op, with its weight kind if it has one -> what was chosen and why
        self.captured_rows: int | None = None  # the least that an Implementation has
        self._on_reference: list[str] = []
        self.held: dict[str, str] = {}  # kinds that are held as another one -> that one
        self._few: dict[str, Callable[..., Any]] = {}
        self.rms_norm: Callable[[Tensor, Tensor, float], Tensor] = self._plain("rms_norm")
        self.add_rms_norm: Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]
        self.add_rms_norm = self._plain("add_rms_norm")
        self.rope: Callable[[Tensor, Tensor, Tensor, Tensor], None] = self._plain("rope")
        self.silu_mul: Callable[[Tensor], Tensor] = self._plain("silu_mul")
        self.kv_write: Callable[..., None] = self._plain("kv_write")
        self.joins_norms = False  # rope_kv_write takes norms of heads too
        self.rope_kv_write: Callable[..., None] = self._rope_kv_write()
        self.paged_attention: Callable[..., Tensor] = self._plain("paged_attention")
        self.prompt_attention = self._where_faster("prompt_attention")

    def linear(self, weights: list[Weight], biases: list[Tensor | None]) -> Linear:
        """One projection, or several of the same input whose outputs stand side by side.

        Neighbours stored alike become one matrix, so that one kernel call serves them.
        """
        parts: list[LinearPart] = []
        first = 0
        for end in range(1, len(weights) + 1):
            if end < len(weights) and together(weights[first], weights[end]):
                continue
            impl = self._for_weight("linear", weights[first])
            stacked = stack_rows(weights[first:end])
            order = None
            if isinstance(stacked, CodedTensor) and stacked.columns is not None:
                order, stacked = stacked.columns.to(torch.int64), replace(stacked, columns=None)
            bias = _stack_biases(biases[first:end], [weight.shape[0] for weight in weights[first:end]])
            codes = impl.codes if isinstance(impl.codes, CodedInput) else None
            parts.append(LinearPart(impl.run, _pack(impl, stacked), bias, order, codes))
            first = end
        return Linear(parts, sum(w.shape[0] for w in weights))

    def linear_of_packed(self, packed: Sequence[Any], biases: list[Tensor | None], widths: Sequence[int]) -> Linear:
        """A projection whose parts were packed at an earlier start. biases and widths: of the matrices in them."""
        parts: list[LinearPart] = []
        first = 0
        for form in packed:
            end, rows = first, 0
            while rows < form.shape[0]:
                rows += widths[end]
                end += 1
            impl = self._chosen("linear", f"linear {form.kind}", replace(self.query, weight_kind=form.kind))
            parts.append(LinearPart(impl.run, form, _stack_biases(biases[first:end], widths[first:end])))
            first = end
        return Linear(parts, sum(widths))

    def embedding(self, weight: Weight) -> Embedding:
        impl = self._for_weight("embedding", weight)
        return Embedding(impl.run, _pack(impl, weight))

    def gate(self, activation: str) -> Callable[[Tensor], Tensor]:
        """The function of a dense MLP's gate and up columns."""
        found: Callable[[Tensor], Tensor] = self.silu_mul if activation == "silu" else self._plain("gelu_mul")
        return found

    def experts(self, gate_up: ExpertStack, down: ExpertStack, activation: str) -> ExpertKernels:
        gate_up, down = self._in_input_order(gate_up), self._in_input_order(down)
        kinds = kind_of(gate_up.weight), kind_of(down.weight)
        impl = self._for_experts(kinds, gate_up.num_experts, activation)
        assert impl.pack is not None
        packed = impl.pack(gate_up), impl.pack(down)
        for stack in packed:  # of which the kernel may leave one to plain torch
            self._heed(getattr(stack, "captured_rows", None))
        return ExpertKernels(self._plain("route"), impl.run, *packed)

    def experts_of_packed(self, kinds: tuple[str, str], gate_up: Any, down: Any, activation: str) -> ExpertKernels:
        """Experts whose matrices were packed before."""
        impl = self._for_experts(kinds, gate_up.num_experts, activation)
        return ExpertKernels(self._plain("route"), impl.run, gate_up, down)

    def _for_experts(self, kinds: tuple[str, str], count: int, activation: str) -> Implementation:
        query = replace(self.query, weight_kind=kinds[0], down_kind=kinds[1], num_experts=count, gate=activation)
        return self._chosen("experts", f"experts {'+'.join(dict.fromkeys(kinds))}", query)

    def _in_input_order(self, stack: ExpertStack) -> ExpertStack:
        """Experts whose columns have an order of their own are decoded: their kernels read one input for all."""
        if isinstance(stack.weight, CodedTensor) and stack.weight.columns is not None:
            plain = decoded(stack.weight, getattr(torch, self.query.dtype))
            self.held[f"experts' {stack.weight.kind}"] = kind_of(plain)
            return ExpertStack(plain, stack.num_experts)
        return stack

    @property
    def latent_write(self) -> Callable[[Tensor, Tensor, Tensor, Tensor], None]:
        return self._of_few("latent_write")

    @property
    def latent_attention(self) -> Callable[..., Tensor]:
        return self._of_few("paged_latent_attention")

    def _of_few(self, op: str) -> Callable[..., Any]:
        """An op that few families need, chosen when it is first asked for."""
        if op not in self._few:
            self._few[op] = self._plain(op)
        return self._few[op]

    def notes(self) -> list[str]:
        """Fall-backs taken, one sentence each."""
        found = [f"Weights in {kind} are held as {held}, which kernels here read." for kind, held in self.held.items()]
        # A look-up is fast anywhere.
        slow = [label for label in self._on_reference if not label.startswith("embedding ")]
        if slow:
            found.append(f"Plain torch, which is slow, computes {', '.join(slow)}: {self._why_not(slow[0])}.")
        return found

    def _why_not(self, label: str) -> str:
        op, _, kind = label.partition(" ")
        reasons = [c.reason for c in registry.explain(op, replace(self.query, weight_kind=kind)) if c.reason]
        return "; ".join(reasons + list(registry.absent_backends().values())) or "no faster kernel is known"

    def _where_faster(self, op: str) -> Callable[..., Any] | None:
        """An op that only saves time: None where nothing but the reference has it."""
        return None if registry.select(op, self.query).name == "reference" else self._plain(op)

    def _rope_kv_write(self) -> Callable[..., None]:
        """One kernel where there is one; else the two it joins, each the best there is."""
        joined = registry.select("rope_kv_write", self.query)
        if joined.name != "reference":
            self.joins_norms = True
            return self._plain("rope_kv_write")

        def both(
            q: Tensor,
            k: Tensor,
            v: Tensor,
            positions: Tensor,
            cos_sin: Tensor,
            view: Tensor,
            *where: Tensor,
            **given: Tensor,
        ) -> None:
            self.rope(q, k, positions, cos_sin)
            self.kv_write(k, v, view, *where, **given)

        return both

    @property
    def asks_device(self) -> bool:
        """Whether some kernel does in any step."""
        return self.captured_rows == 0

    def _heed(self, captured_rows: int | None) -> None:
        known = [rows for rows in (self.captured_rows, captured_rows) if rows is not None]
        self.captured_rows = min(known, default=None)

    def _plain(self, op: str) -> Callable[..., Any]:
        return self._chosen(op, op, self.query).run

    def _for_weight(self, op: str, weight: Weight) -> Implementation:
        kind = kind_of(weight)
        return self._chosen(op, f"{op} {kind}", replace(self.query, weight_kind=kind))

    def _chosen(self, op: str, label: str, query: OpQuery) -> Implementation:
        impl = registry.select(op, query)
        if label not in self.kernels:
            self.kernels[label] = registry.why(op, query)
            self._heed(impl.captured_rows)
            if impl.name == "reference":
                self._on_reference.append(label)
        return impl


def _pack(impl: Implementation, weight: Weight) -> Any:
    return weight if impl.pack is None else impl.pack(weight)


def _stack_biases(biases: list[Tensor | None], widths: Sequence[int]) -> Tensor | None:
    present = [b for b in biases if b is not None]
    if not present:
        return None
    return torch.cat([b if b is not None else present[0].new_zeros(w) for b, w in zip(biases, widths, strict=True)])
