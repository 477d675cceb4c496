"""build_runner: the runner of batches, asking the handlers that HTTP has."""

from __future__ import annotations

from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from daemon.api.batches.asking import ORIGIN, Asking
from daemon.batches.runner import BatchRunner
from daemon.strategy.rules import local_timezone

if TYPE_CHECKING:
    from daemon.api.services import Services
    from daemon.events import EventLog


def build_runner(services: Services, events: EventLog | None = None) -> BatchRunner:
    from daemon.api.routes import public_table  # which knows every handler, those of batches too

    tenants, live, settings = services.tenants, services.serving.live, services.settings

    def busy() -> bool:
        return bool(tenants.admission.waiting) or any(one.origin != ORIGIN for one in live.all())

    def closed() -> bool:
        return tenants.admission.draining or bool(tenants.admission.paused)

    zone = ZoneInfo(settings.schedule.timezone or local_timezone())
    ask = Asking(services, public_table())
    return BatchRunner(services.batches, ask, tenants.principal_of, busy, closed, events, zone)
