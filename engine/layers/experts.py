"""An MLP of experts: a router chooses some for each token; shared ones, where there are any, take every token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from engine.layers.linear import CodedRows
from engine.layers.mlp import GatedMlp
from engine.spec.model_spec import MlpSpec


@dataclass(frozen=True, slots=True)
class ExpertKernels:
    """The chosen implementations, and the experts' matrices in the form that theirs wants."""

    route: Callable[..., tuple[Tensor, Tensor]]
    run: Callable[..., Tensor]
    gate_up: Any
    down: Any


@dataclass(frozen=True, slots=True)
class ExpertsMlp:
    spec: MlpSpec
    router: Callable[[Tensor], Tensor]  # [T, hidden] -> [T, E]
    kernels: ExpertKernels
    correction: Tensor | None  # [E] float32
    gate_up_bias: Tensor | None  # [E, 2I]
    down_bias: Tensor | None  # [E, hidden]
    shared: GatedMlp | None

    @property
    def entry(self) -> None:
        """No projection alone reads the input: the router does, and experts."""
        return None

    def __call__(self, x: Tensor | CodedRows) -> Tensor:
        """Shapes: x [T, hidden] -> [T, hidden]"""
        assert isinstance(x, Tensor)
        spec, kernels = self.spec, self.kernels
        ids, weights = kernels.route(
            self.router(x),
            spec.experts_per_token,
            spec.router_score,
            spec.normalise_router,
            spec.router_scale,
            self.correction,
            spec.router_groups,
            spec.router_groups_kept,
            spec.router_group_top,
        )
        biases = (self.gate_up_bias, self.down_bias)
        out = kernels.run(x, ids, weights, kernels.gate_up, kernels.down, *biases, spec.activation)
        return out if self.shared is None else out + self.shared(x)
