"""What needs a person, drawn from what the daemon says: each with its reason and its fix."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from admin_tui.answers import Accelerators, Models, Status, Workers
from admin_tui.feed import Snapshot
from admin_tui.figures import duration

SKEW_LIMIT_S = 2.0
HEALTHY_DEVICE = frozenset({"usable", "busy"})
BROKEN_WORKER = frozenset({"latched", "backoff", "lost"})


class Severity(StrEnum):
    FAIL = "FAIL"
    WARN = "WARN"


@dataclass(frozen=True, slots=True)
class Fault:
    """at None: since before anyone looked. screen: where it can be acted upon."""

    severity: Severity
    subject: str
    message: str
    fix: str = ""
    at: datetime | None = None
    screen: str = "overview"


def attention_from(snapshot: Snapshot) -> list[Fault]:
    """Failures first, then the newest first."""
    faults = [
        *_workers(snapshot),
        *_models(snapshot),
        *_accelerators(snapshot),
        *_skew(snapshot),
        *_endpoints(snapshot),
    ]
    named = {fault.subject for fault in faults}
    # The box's own reasons, less those about something that is already in the list with its fix.
    faults += [fault for fault in _reasons(snapshot) if not any(name in fault.message for name in named)]
    return sorted(faults, key=lambda f: (f.severity is not Severity.FAIL, -(f.at.timestamp() if f.at else 0.0)))


def _workers(snapshot: Snapshot) -> Iterator[Fault]:
    answer = snapshot.get(Workers)
    for worker in answer.items if answer else ():
        if worker.state in BROKEN_WORKER:
            severity = Severity.WARN if worker.state == "backoff" else Severity.FAIL
            why = worker.reason or worker.last_exit or "no reason was given"
            message = f"{worker.id} {worker.model} {worker.state.upper()}: {why}"
            fix = worker.fix or "read its log on Workers, then R there"
            yield Fault(severity, worker.id, message, fix, worker.since, "workers")


def _models(snapshot: Snapshot) -> Iterator[Fault]:
    answer = snapshot.get(Models)
    for model in answer.items if answer else ():
        if model.state == "damaged":
            message = f"model {model.name} is damaged: its files are not what was imported"
            yield Fault(Severity.FAIL, model.name, message, f"bayard models verify {model.name}", None, "models")


def _accelerators(snapshot: Snapshot) -> Iterator[Fault]:
    answer = snapshot.get(Accelerators)
    for device in answer.items if answer else ():
        if device.state not in HEALTHY_DEVICE:
            message = f"{device.id} {device.name or device.vendor} {device.state.upper()}: {device.reason}"
            yield Fault(Severity.WARN, device.id, message, device.fix, answer.as_of if answer else None)


def _skew(snapshot: Snapshot) -> Iterator[Fault]:
    status = snapshot.get(Status)
    if status and snapshot.answered_at and not snapshot.error(Status):
        skew_s = (status.as_of - snapshot.answered_at).total_seconds()
        if abs(skew_s) > SKEW_LIMIT_S:
            side = "ahead of" if skew_s > 0 else "behind"
            message = f"the box's clock is {duration(abs(skew_s))} {side} this terminal's; ages are by the box's"
            yield Fault(Severity.WARN, "clock", message, "timedatectl status, on both machines")


def _endpoints(snapshot: Snapshot) -> Iterator[Fault]:
    for kind, error in snapshot.errors.items():
        if snapshot.link.failures == 0:
            yield Fault(Severity.WARN, kind.__name__, f"{kind.__name__.lower()} cannot be shown: {error}", error.hint)


def _reasons(snapshot: Snapshot) -> Iterator[Fault]:
    status = snapshot.get(Status)
    for reason in status.reasons if status else ():
        yield Fault(Severity.WARN, "status", reason)
