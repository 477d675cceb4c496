"""What needs me? And: is the box serving, by what, on what, until when.

Endpoints: status, host, workers, models, accelerators, metrics/summary, schedule/timeline, events.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

import msgspec
from textual.widget import Widget

from admin_tui.answers import Accelerator, Accelerators, Events, Status, Summary, Timeline, Worker, Workers
from admin_tui.attention import HEALTHY_DEVICE, Fault, Severity, attention_from
from admin_tui.clock import Clock
from admin_tui.daybar import daybar
from admin_tui.feed import Snapshot
from admin_tui.figures import UNKNOWN, count, duration, millis, percent, rate, size_pair
from admin_tui.grid import Column, Row, lines
from admin_tui.look import Cell, Line, Look, Tone, plain
from admin_tui.screens.console_screen import ConsoleScreen
from admin_tui.screens.panels import panel_of
from admin_tui.screens.transitions import transition_lines
from admin_tui.screens.worker_rows import worker_row
from admin_tui.widgets.panel import Panel

RECENT = 6
WORKER_COLUMNS = (
    Column("id", "id", 12, 0),
    Column("model", "model", 16, 1),
    Column("state", "state", 8, 0),
    Column("since", "since", 8, 4),
    Column("device", "device", 6, 5),
    Column("running", "in flight", 9, 2, right=True),
    Column("restarts", "restarts/24h", 12, 3, right=True),
    Column("memory", "memory used/plan", 16, 2, right=True),
)
DEVICE_COLUMNS = (
    Column("id", "id", 8, 0),
    Column("name", "name", 24, 1),
    Column("util", "util", 6, 3, right=True),
    Column("memory", "memory", 18, 2, right=True),
    Column("temp", "temp", 6, 4, right=True),
    Column("power", "power", 9, 5, right=True),
    Column("state", "state", 12, 0),
)


class OverviewScreen(ConsoleScreen):
    mode = "overview"
    asks: ClassVar[tuple[type[msgspec.Struct], ...]] = (Summary, Timeline)

    def body(self) -> Iterable[Widget]:
        yield Panel("NEEDS ATTENTION", id="attention")
        yield Panel("SERVING", id="serving")
        yield Panel("WORKERS", id="workers")
        yield Panel("ACCELERATORS", id="accelerators")
        yield Panel("TODAY", id="today")
        yield Panel("RECENT", id="recent")

    def show(self, snapshot: Snapshot) -> None:
        clock, status = self.console.clock, snapshot.get(Status)
        if snapshot.answers:
            faults = attention_from(snapshot)
            title = f"NEEDS ATTENTION ({len(faults)})"
            self.panel("attention").show(title, lambda width, look: fault_lines(faults, clock, width, look))
        self.panel("serving").show(
            summary_title(snapshot), panel_of(snapshot, Summary, lambda s, *_: serving_lines(s, status))
        )
        self.panel("workers").show(
            "WORKERS",
            panel_of(snapshot, Workers, lambda w, width, look: worker_lines(w.items, status, clock, width, look)),
        )
        self.panel("accelerators").show(
            "ACCELERATORS", panel_of(snapshot, Accelerators, lambda a, width, look: device_lines(a.items, width, look))
        )
        self.panel("today").show(
            "TODAY", panel_of(snapshot, Timeline, lambda t, width, _: daybar(t.items, t.as_of, clock, width))
        )
        self.panel("recent").show(
            "RECENT",
            panel_of(snapshot, Events, lambda e, width, look: transition_lines(e.items[-RECENT:], clock, width, look)),
        )

    def panel(self, name: str) -> Panel:
        return self.query_one(f"#{name}", Panel)


def fault_lines(faults: Sequence[Fault], clock: Clock, width: int, look: Look) -> list[Line]:
    if not faults:
        return [[Cell("OK    ", Tone.GOOD), Cell("nothing")]]
    shown: list[Line] = []
    for fault in faults:
        tone = Tone.BAD if fault.severity is Severity.FAIL else Tone.WARN
        at = f"{clock.local(fault.at):%H:%M}" if fault.at else "     "
        shown.append([Cell(f"{fault.severity.value}  ", tone), Cell(f"{at}  {look.fit(fault.message, width - 13)}")])
        if fault.fix:
            shown.append([Cell(" " * 13 + look.fit(f"fix: {fault.fix}", width - 13))])
    return shown


def summary_title(snapshot: Snapshot) -> str:
    summary = snapshot.get(Summary)
    return f"SERVING, last {duration(summary.window_s)}" if summary else "SERVING"


def serving_lines(summary: Summary, status: Status | None) -> list[Line]:
    running, waiting = (status.requests_running, status.requests_waiting) if status else (None, None)
    pages = None
    if summary.kv_pages_total and summary.kv_pages_used is not None:
        pages = summary.kv_pages_used / summary.kv_pages_total
    evictable = None
    if summary.kv_pages_total and summary.kv_pages_cached is not None:
        evictable = summary.kv_pages_cached / summary.kv_pages_total
    return [
        plain(
            f"requests    running {count(running)}   waiting {count(waiting)}   "
            f"done {count(summary.requests_done)}   failed {count(summary.requests_failed)}   "
            f"refused {count(summary.requests_rejected)}"
        ),
        plain(f"tokens/s    in {rate(summary.prompt_tok_s)}    out {rate(summary.output_tok_s)}"),
        plain(
            f"first token p50 {millis(summary.ttft_p50_s)}   p95 {millis(summary.ttft_p95_s)}      "
            f"between tokens p50 {millis(summary.itl_p50_s)}   p95 {millis(summary.itl_p95_s)}"
        ),
        plain(
            f"KV pages    {percent(pages)} in use, {percent(evictable)} evictable      "
            f"prefix hits {percent(summary.prefix_hit_ratio)}"
        ),
    ]


def worker_lines(workers: Sequence[Worker], status: Status | None, clock: Clock, width: int, look: Look) -> list[Line]:
    if not workers and status is not None and status.state in ("draining", "stopping"):
        return [plain("No workers any more: the daemon is stopping.")]
    if not workers and status is not None and status.plan is not None:
        return [plain(f"No workers: plan {status.plan} has none running. Its models: screen 3")]
    if not workers:
        return [plain("No workers: no plan is active. Import a model: bayard models import FILE")]
    return lines(WORKER_COLUMNS, [worker_row(worker, clock) for worker in workers], width, look)


def device_lines(devices: Sequence[Accelerator], width: int, look: Look) -> list[Line]:
    if not devices:
        return [plain("None was found: models run on the CPU. What was looked at: bayard hw")]
    return lines(DEVICE_COLUMNS, [device_row(device) for device in devices], width, look)


def device_row(device: Accelerator) -> Row:
    healthy = device.state in HEALTHY_DEVICE
    util = None if device.utilisation_percent is None else device.utilisation_percent / 100
    power = f"{count(device.power_w)}/{count(device.power_limit_w)}"
    return Row(
        device.id,
        {
            "id": Cell(device.id),
            "name": Cell(device.name or device.vendor),
            "util": Cell(percent(util)),
            "memory": Cell(size_pair(device.memory_used_bytes, device.memory_total_bytes)),
            "temp": Cell(UNKNOWN if device.temperature_c is None else f"{device.temperature_c:.0f} C"),
            "power": Cell(power),
            "state": Cell(device.state.upper(), Tone.GOOD if healthy else Tone.WARN),
        },
    )
