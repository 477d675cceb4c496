"""What the rest of Bayard sees of an imported model."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any


class ModelState(StrEnum):
    READY = "ready"
    DAMAGED = "damaged"  # verify found a file that is not what was imported


ADAPTER_FORMAT = "lora"  # ModelRecord.format of what runs on a base; else a CheckpointFormat


@dataclass(frozen=True, slots=True)
class FileRecord:
    path: str  # relative to the model's folder
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class ModelRecord:
    name: str
    state: ModelState
    format: str
    architecture: str
    path: str  # what engine.spec.read_spec and a worker are given
    linked: bool  # True: the operator's own file, used where it lies
    num_parameters: int
    weight_bytes: int
    max_context_tokens: int
    source_dtype: str
    licence: str | None
    imported_at: datetime
    verified_at: datetime | None
    files: tuple[FileRecord, ...]
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def base(self) -> str | None:
        """The model that an adapter runs on; None for a model of its own."""
        found = self.details.get("base")
        return found if isinstance(found, str) else None


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What an import learns from headers."""

    format: str
    architecture: str
    num_parameters: int
    weight_bytes: int
    max_context_tokens: int
    source_dtype: str
    details: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ImportProgress:
    stage: str  # "checking", "hashing", "copying", "verifying"
    file: str
    done_bytes: int
    total_bytes: int
