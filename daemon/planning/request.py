"""Request: what an operator asked the planner for."""

from __future__ import annotations

from dataclasses import dataclass

from daemon.planning.strategy import Strategy
from engine.errors import InvalidParameter
from engine.spec.model_spec import ModelSpec
from engine.spec.precision import WeightPrecision, weight_precision


@dataclass(frozen=True, slots=True)
class Request:
    """What the operator asked for; None: the strategy decides."""

    strategy: Strategy
    context_tokens: int | None = None
    users: int | None = None
    kv_dtype: str | None = None
    kv_tokens: int | None = None  # exactly this pool, so that another plan can run in the same worker
    device: str | None = None  # this device alone
    weights: str | None = None  # what matrices are rounded to at load, a WeightPrecision; None: as stored

    @property
    def precision(self) -> str:
        return self.weights or WeightPrecision.STORED


def check(spec: ModelSpec, request: Request) -> None:
    """Raises: InvalidParameter for what the model was not made for, and for a count below one."""
    context, users = request.context_tokens, request.users
    if context is not None and context > spec.max_context_tokens:
        raise InvalidParameter(
            f"a context of {context:,} tokens was asked for; {spec.name} was made for {spec.max_context_tokens:,}.",
            f"Ask for --context {spec.max_context_tokens} or less.",
            param="context",
        )
    if request.weights is not None:
        precision = weight_precision(request.weights)
        if spec.is_encoder and precision is not WeightPrecision.STORED:
            raise InvalidParameter(
                f"{spec.name} is an encoder; its weights are not made into {precision}.", "Use stored.", param="weights"
            )
    for name, value in (("context", context), ("users", users)):
        if value is not None and value < 1:
            raise InvalidParameter(f"--{name} is {value}; it must be at least 1.", "", param=name)
