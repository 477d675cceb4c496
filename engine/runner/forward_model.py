"""What the runner asks of a model."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch

from engine.batch import ForwardBatch


class ForwardModel(Protocol):
    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        """Logits [R, vocab] float32 for batch.logit_rows."""
        ...


@runtime_checkable
class EmbeddingModel(Protocol):
    """A ForwardModel in two halves."""

    def hidden(self, batch: ForwardBatch) -> torch.Tensor:
        """[R, hidden] after the last norm, of batch.logit_rows."""
        ...

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """[R, vocab] float32."""
        ...
