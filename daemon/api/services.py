"""What the public APIs need of the appliance; the composition root is one such thing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from daemon.batches.desk import BatchDesk
    from daemon.models.record import ModelRecord
    from daemon.responses.archive import ResponseArchive
    from daemon.router import Router
    from daemon.serving.embedding import EmbeddingPath
    from daemon.serving.path import ServingPath
    from daemon.settings import Settings
    from daemon.telemetry.metrics import Metrics
    from daemon.tenants.service import TenantService
    from daemon.workers.view import WorkerView


class WorkerViews(Protocol):
    """The part of the supervisor that is looked at."""

    def views(self) -> list[WorkerView]: ...


class Services(Protocol):
    """Attributes of daemon.app.Appliance that HTTP and gRPC read."""

    @property
    def settings(self) -> Settings: ...
    @property
    def tenants(self) -> TenantService: ...
    @property
    def router(self) -> Router: ...
    @property
    def serving(self) -> ServingPath: ...
    @property
    def embedding(self) -> EmbeddingPath: ...
    @property
    def responses(self) -> ResponseArchive: ...
    @property
    def batches(self) -> BatchDesk: ...
    @property
    def metrics(self) -> Metrics: ...
    @property
    def supervisor(self) -> WorkerViews: ...

    def model_record(self, name: str) -> ModelRecord | None:
        """What is known of an imported model. Blocks."""
