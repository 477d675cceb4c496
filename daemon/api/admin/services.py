"""What the admin API needs of the appliance, beyond what the public APIs need."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from daemon.api.services import Services

if TYPE_CHECKING:
    from daemon.events import EventLog
    from daemon.machine_watch import MachineWatch
    from daemon.models.aliases import Aliases
    from daemon.models.operations import Operations
    from daemon.models.registry import ModelRegistry
    from daemon.reload import Reloaded
    from daemon.store.session import Store
    from daemon.strategy.controller import PlanController
    from daemon.strategy.desk import PlanningDesk
    from daemon.strategy.plans import Plans
    from daemon.strategy.rules import Rules
    from daemon.tls.server_tls import ServerTls
    from daemon.workers.supervisor import Supervisor


class AdminServices(Services, Protocol):
    """Attributes of daemon.app.Appliance that the admin API reads."""

    async def reload(self) -> Reloaded: ...
    @property
    def started_at(self) -> datetime: ...
    @property
    def http_address(self) -> str | None: ...
    @property
    def admin_tls_address(self) -> str | None: ...
    @property
    def grpc_address(self) -> str | None: ...
    @property
    def tls(self) -> ServerTls | None: ...
    @property
    def store(self) -> Store: ...
    @property
    def machine(self) -> MachineWatch: ...
    @property
    def events(self) -> EventLog: ...
    @property
    def supervisor(self) -> Supervisor: ...
    @property
    def models(self) -> ModelRegistry: ...
    @property
    def aliases(self) -> Aliases: ...
    @property
    def operations(self) -> Operations: ...
    @property
    def plans(self) -> Plans: ...
    @property
    def rules(self) -> Rules: ...
    @property
    def desk(self) -> PlanningDesk: ...
    @property
    def controller(self) -> PlanController: ...
