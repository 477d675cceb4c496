"""What the rest of the daemon sees of files and batches."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")


class BatchState(StrEnum):
    VALIDATING = "validating"  # -> in_progress, failed, cancelling
    IN_PROGRESS = "in_progress"  # -> finalizing, expired, cancelling, failed
    FINALIZING = "finalizing"  # -> completed
    CANCELLING = "cancelling"  # -> cancelled
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"

    @property
    def over(self) -> bool:
        return self in (BatchState.COMPLETED, BatchState.FAILED, BatchState.EXPIRED, BatchState.CANCELLED)


@dataclass(frozen=True, slots=True)
class FileRecord:
    """purpose: batch, batch_output."""

    id: str
    tenant_id: str
    purpose: str
    filename: str
    size_bytes: int
    created_at: datetime
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class LineError:
    """Why a batch was not begun. line: from 1; None where it is about the whole."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """moments: when it entered a state, by the state."""

    id: str
    tenant_id: str
    key_id: str
    endpoint: str
    input_file_id: str
    completion_window: str
    state: BatchState
    created_at: datetime
    expires_at: datetime
    output_file_id: str | None = None
    error_file_id: str | None = None
    total: int = 0
    completed: int = 0
    failed: int = 0
    errors: tuple[LineError, ...] = ()
    metadata: dict[str, str] = field(default_factory=dict)
    moments: dict[str, datetime] = field(default_factory=dict)

    @property
    def facts(self) -> dict[str, Any]:
        """For the log."""
        return {"batch": self.id, "state": self.state, "completed": self.completed, "failed": self.failed}
