"""What needs a person now, from every part of the box: each with its reason and the command that mends it."""

from __future__ import annotations

import asyncio
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path

import psutil

from daemon.api.admin.services import AdminServices
from daemon.api.admin.workers import worker_item
from daemon.api.connections import open_files_limit
from daemon.machine_watch import id_of
from daemon.store.base import utc_now
from daemon.store.marks import Mark, MarkKind, Marks
from daemon.tenants.quota import Period
from daemon.workers.states import WorkerState
from hwdetect.machine import Machine

CERTIFICATE_WARNING_S = 14 * 86_400.0
QUOTA_WARNING_SHARE = 0.9
FILES_WARNING_SHARE = 0.9
SETTLING_S = 900.0  # after a start, for faults to be seen again that were acknowledged before it
DISK_WARNING_SHARE, DISK_FAIL_SHARE = 0.1, 0.03  # free
_BROKEN = {WorkerState.LATCHED: "fail", WorkerState.LOST: "fail", WorkerState.BACKOFF: "warn"}
_ODD = re.compile(r"[^A-Za-z0-9_.-]+")


class Severity(StrEnum):
    FAIL = "fail"
    WARN = "warn"


@dataclass(frozen=True, slots=True)
class Fault:
    """kind: worker, accelerator, model, plan, tenant, certificate, usage, events, files, admission, disk."""

    kind: str
    subject: str
    severity: Severity
    text: str
    fix: str

    @property
    def id(self) -> str:
        """The same as long as it is the same fault of the same thing, and a single word of a path."""
        return f"{self.kind}.{_ODD.sub('-', self.subject)}"


@dataclass(slots=True)
class Attention:
    """Since when each fault is seen, which a restart forgets, and who has seen it. Owner: the admin application.

    Blocks: its methods wait for the store; call in threads.
    """

    marks: Marks
    since: dict[str, datetime] = field(default_factory=dict)
    acknowledged: dict[str, Mark] = field(default_factory=dict)
    began_at: datetime = field(default_factory=utc_now)

    def note(self, faults: list[Fault]) -> None:
        """A fault that is gone is forgotten: if it comes again, it is a new one. Not soon after a start, though."""
        ids, now = {fault.id for fault in faults}, utc_now()
        known = self.marks.all(MarkKind.ACKNOWLEDGED)
        starting = (now - self.began_at).total_seconds() < SETTLING_S
        gone = [one for one in known if one not in ids and (one in self.since or not starting)]
        self.marks.clear(MarkKind.ACKNOWLEDGED, gone)
        self.since = {one: self.since.get(one, now) for one in ids}
        self.acknowledged = {one: mark for one, mark in known.items() if one not in gone}

    def acknowledge(self, fault: Fault, by: str) -> None:
        """The first to say so stands."""
        if fault.id not in self.acknowledged:
            mark = Mark(fault.id, fault.text, by, utc_now())
            self.marks.set(MarkKind.ACKNOWLEDGED, mark)
            self.acknowledged = {**self.acknowledged, fault.id: mark}


async def faults_of(services: AdminServices) -> list[Fault]:
    """Failures first."""
    strategy = await asyncio.to_thread(services.controller.view)
    machine = await services.machine.current()
    tenants = await services.tenants.tenants()
    models = await asyncio.to_thread(services.models.all)
    found = [
        *_workers(services),
        *_accelerators(machine, services),
        *_disk(machine),
        *await asyncio.to_thread(lambda: list(_folder(services.settings.state_dir))),
        *_service(services),
    ]
    found += [
        Fault(
            "model", model.name, Severity.FAIL, f"model {model.name} is damaged", f"bayard models verify {model.name}"
        )
        for model in models
        if model.state == "damaged"
    ]
    if strategy.problem:
        found.append(
            Fault(
                "plan", strategy.plan or "none", Severity.FAIL, strategy.problem, "`bayard plan list`; activate another"
            )
        )
    now = services.tenants.admission.now()
    for tenant in tenants:
        most = {Period.DAY: tenant.limits.tokens_per_day, Period.MONTH: tenant.limits.tokens_per_month}
        for quota in services.tenants.admission.quotas_of(tenant.id).both():
            limit, window = most[quota.period], quota.window(now)
            if limit is not None and window.used >= QUOTA_WARNING_SHARE * limit:
                period, ends = quota.period.value, quota.period.end_of(now)
                text = (
                    f"tenant {tenant.name} has used {window.used:,} of its {limit:,} tokens of the {period}; "
                    f"resets at {ends:%Y-%m-%d %H:%M} UTC"
                )
                fix = f"bayard tenants limits {tenant.name} --tokens-per-{period} N"
                found.append(Fault("tenant", f"{tenant.name}-{period}", Severity.WARN, text, fix))
    return sorted(found, key=lambda fault: fault.severity is not Severity.FAIL)


def _workers(services: AdminServices) -> Iterator[Fault]:
    for view in services.supervisor.views():
        severity = _BROKEN.get(view.state)
        if severity is not None:
            text = f"worker {view.name} of {view.model} is {view.state}: {view.reason}"
            yield Fault("worker", view.name, Severity(severity), text, worker_item(view, None).fix)


def _accelerators(machine: Machine, services: AdminServices) -> Iterator[Fault]:
    for device in machine.accelerators:
        name = id_of(device)
        if not device.usable:
            text = f"{name} {device.name or device.vendor.value} is {device.state.value}: {device.reason}"
            yield Fault("accelerator", name, Severity.FAIL, text, device.fix)
        for number, warning in enumerate(device.warnings):
            yield Fault("accelerator", f"{name}-{number}", Severity.WARN, f"{name}: {warning}", device.fix)


def _disk(machine: Machine) -> Iterator[Fault]:
    for disk in machine.disks[:1]:  # the state folder's
        if not disk.total_bytes or disk.free_bytes is None:
            continue
        share = disk.free_bytes / disk.total_bytes
        if share < DISK_WARNING_SHARE:
            severity = Severity.FAIL if share < DISK_FAIL_SHARE else Severity.WARN
            text = f"{disk.free_bytes / 2**30:.1f} of {disk.total_bytes / 2**30:.1f} GiB of the state's disk are free"
            yield Fault("disk", "state", severity, text, "bayard models list; delete what is not used")


def _folder(state_dir: Path) -> Iterator[Fault]:
    if state_dir.stat().st_mode & stat.S_IWOTH:
        text = f"every user of this machine can put files into {state_dir}, and take the database away"
        yield Fault("disk", "folder", Severity.WARN, text, f"chmod o-rwx {state_dir}")


def _service(services: AdminServices) -> Iterator[Fault]:
    tenants, tls = services.tenants, services.tls
    if tls is not None and tls.left_s < CERTIFICATE_WARNING_S:
        severity = Severity.FAIL if tls.left_s <= 0 else Severity.WARN
        text = f"the certificate expires in {tls.left_s / 86_400:.0f} days"
        yield Fault("certificate", "server", severity, text, "bayard tls rotate, or replace the site's own")
    if tls is not None and tls.problem is not None:
        text = f"the certificate on the disk is not used, and the next start fails: {tls.problem}"
        yield Fault(
            "certificate", "files", Severity.FAIL, text, "bayard tls rotate --name HOST, or mend the site's own"
        )
    if tenants.usage.problem is not None:
        text = f"usage waits in memory: {tenants.usage.problem}"
        yield Fault(
            "usage", "ledger", Severity.FAIL, text, "make room on the state's disk; it is settled by itself then"
        )
    if tenants.usage.lost_requests:
        text = f"the usage of {tenants.usage.lost_requests} requests is recorded nowhere"
        yield Fault("usage", "lost", Severity.WARN, text, "the journal tells why: usage_lost")
    if services.events.unwritten:
        text = f"{services.events.unwritten} events wait in memory: the database cannot be written"
        yield Fault(
            "events", "log", Severity.WARN, text, "make room on the state's disk; they are written by themselves then"
        )
    opened, most = psutil.Process().num_fds(), open_files_limit()
    if opened > FILES_WARNING_SHARE * most:
        text = f"{opened:,} of {most:,} files are open; no connection is taken once all are"
        yield Fault(
            "files", "open", Severity.WARN, text, "lower http.max_connections, or raise LimitNOFILE of the unit"
        )
    if tenants.admission.paused:
        text = f"admission is paused: {tenants.admission.paused}"
        yield Fault("admission", "paused", Severity.WARN, text, "bayard admission resume")
