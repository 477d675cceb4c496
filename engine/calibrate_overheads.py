"""Overheads: a layer's calls on sizes so small that only the calling is left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from engine.kernels.registry import OpQuery, select
from engine.quant.expert_stack import ExpertStack

LAYERS = 20  # of each kind in one timed piece of work
_NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
_KINDS = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
_WIDTH, _DIM, _EXPERTS, _CHOSEN = 64, 64, 16, 4


class Overheads:
    """Owner: a calibration."""

    def __init__(self, device: torch.device, dtype: torch.dtype, capabilities: frozenset[str]) -> None:
        self._device, self._dtype, self._capabilities = device, dtype, capabilities
        # Made beforehand: what is timed may be recorded, and a recording takes nothing from the host.
        self._dense, self._routed = self._layer(), self._experts()

    def layers(self) -> torch.Tensor:
        """A dense decoder layer, LAYERS times."""
        return self._repeat(self._dense)

    def experts(self) -> torch.Tensor:
        """What experts in the place of a dense MLP add, LAYERS times."""
        return self._repeat(self._routed)

    def _repeat(self, work: Callable[[], torch.Tensor]) -> torch.Tensor:
        for _ in range(LAYERS):
            out = work()
        return out

    def _op(self, kind: str, **known: object) -> Any:
        query = OpQuery(self._device.type, _NAMES[self._dtype], capabilities=self._capabilities, **known)  # type: ignore[arg-type]
        return select(kind, query)

    def _zeros(self, *shape: int) -> torch.Tensor:
        return torch.zeros(*shape, dtype=self._dtype, device=self._device)

    def _layer(self) -> Callable[[], torch.Tensor]:
        device, name = self._device, _NAMES[self._dtype]
        linear = self._op("linear", weight_kind=_KINDS[self._dtype])
        weight: object = self._zeros(_WIDTH, _WIDTH)
        weight = weight if linear.pack is None else linear.pack(weight)
        norm, silu = self._op("add_rms_norm").run, self._op("silu_mul").run
        paged = {"head_dim": _DIM, "kv_dtype": name}
        write, attention = self._op("rope_kv_write", **paged).run, self._op("paged_attention", **paged).run
        x, scale, q = self._zeros(1, _WIDTH), torch.ones(_WIDTH, device=device), self._zeros(1, 1, _DIM)
        view = self._zeros(2, 2, 1, 16, _DIM)
        angles = torch.zeros(16, _DIM, device=device)
        zero = torch.zeros(1, dtype=torch.int64, device=device)
        tables = torch.zeros(1, 1, dtype=torch.int32, device=device)
        starts = torch.tensor([0, 1], dtype=torch.int32, device=device)
        lens = torch.ones(1, dtype=torch.int32, device=device)
        pair = torch.cat((x, x), dim=-1)

        def layer() -> torch.Tensor:
            norm(x, x, scale, 1e-5)
            linear.run(x, weight, None)
            write(q, q, q, zero, angles, view, zero, zero)
            attention(q, view, tables, starts, lens, 0.125, None, None, None)
            linear.run(x, weight, None)
            norm(x, x, scale, 1e-5)
            linear.run(x, weight, None)
            silu(pair)
            out: torch.Tensor = linear.run(x, weight, None)
            return out

        return layer

    def _experts(self) -> Callable[[], torch.Tensor]:
        kind = _KINDS[self._dtype]
        route = self._op("route").run
        experts = self._op("experts", weight_kind=kind, down_kind=kind, num_experts=_EXPERTS, gate="silu")
        pack = experts.pack or (lambda stack: stack)
        gate_up = pack(ExpertStack(self._zeros(_EXPERTS * 2 * _WIDTH, _WIDTH), _EXPERTS))
        down = pack(ExpertStack(self._zeros(_EXPERTS * _WIDTH, _WIDTH), _EXPERTS))
        x = self._zeros(1, _WIDTH)
        logits = torch.zeros(1, _EXPERTS, device=self._device)

        def layer() -> torch.Tensor:
            ids, weights = route(logits, _CHOSEN, "softmax", True, 1.0, None, 1, 1, 1)
            out: torch.Tensor = experts.run(x, ids, weights, gate_up, down, None, None, "silu")
            return out

        return layer
