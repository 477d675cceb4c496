"""Is each worker what it should be, and if not, why? Restart is here.

Endpoints: workers, events; POST workers/{id}/restart.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar
from urllib.parse import quote

from textual import on
from textual.binding import Binding, BindingType
from textual.widget import Widget
from textual.widgets import DataTable

from admin_tui.answers import Events, Status, Transition, Worker, Workers
from admin_tui.clock import Clock
from admin_tui.feed import Snapshot
from admin_tui.figures import count, duration, size_pair
from admin_tui.grid import Column
from admin_tui.look import Cell, Line, Look, Tone, named, plain
from admin_tui.screens.confirm import Question
from admin_tui.screens.console_screen import ConsoleScreen
from admin_tui.screens.panels import panel_of
from admin_tui.screens.transitions import transition_text
from admin_tui.screens.worker_rows import TONES, progress, worker_row
from admin_tui.widgets.live_table import LiveTable
from admin_tui.widgets.panel import Panel

COLUMNS = (
    Column("id", "id", 14, 0),
    Column("model", "model", 18, 1),
    Column("wanted", "wanted", 7, 6),
    Column("state", "state", 9, 0),
    Column("progress", "", 5, 3),
    Column("since", "since", 8, 2),
    Column("pid", "pid", 7, 5, right=True),
    Column("device", "device", 7, 5),
    Column("running", "in flight", 9, 2, right=True),
    Column("step_age", "step age", 8, 4, right=True),
    Column("restarts", "restarts/24h", 12, 3, right=True),
)
HISTORY = 7
LOG_LINES = 8


class WorkersScreen(ConsoleScreen):
    mode = "workers"
    AUTO_FOCUS = "#workers-table"

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "R", "restart", "restart...", id="workers.restart", tooltip="Restart the selected worker, after asking"
        ),
    ]

    def body(self) -> Iterable[Widget]:
        yield Panel("WORKERS", id="workers-title")
        yield LiveTable(COLUMNS, id="workers-table")
        yield Panel("DETAILS", id="worker")
        yield Panel("HISTORY", id="history")
        yield Panel("LOG", id="log")

    def show(self, snapshot: Snapshot) -> None:
        clock, answer, status = self.console.clock, snapshot.get(Workers), snapshot.get(Status)
        wanted = f"wanted by plan {status.plan}: {status.workers_wanted}" if status and status.plan else "no plan"
        title = f"WORKERS ({len(answer.items)})   {wanted}" if answer else "WORKERS"
        self.query_one("#workers-title", Panel).show(title, panel_of(snapshot, Workers, lambda w, *_: empty_lines(w)))
        table = self.query_one(LiveTable)
        table.sync([worker_row(worker, clock) for worker in answer.items] if answer else [])
        self.show_selected(snapshot)

    @on(DataTable.RowHighlighted)
    def _selection_moved(self) -> None:
        self.show_selected(self.console.feed.snapshot)

    def show_selected(self, snapshot: Snapshot) -> None:
        worker, clock = self.selected(snapshot), self.console.clock
        for name in ("worker", "history", "log"):
            self.query_one(f"#{name}", Panel).display = worker is not None
        answer, events = snapshot.get(Workers), snapshot.get(Events)
        if worker is None or answer is None:
            return
        held_s = (answer.as_of - worker.since).total_seconds()
        title = f"{worker.id} {worker.model}   {worker.state.upper()} for {duration(held_s)}"
        self.query_one("#worker", Panel).show(title, lambda width, _: detail_lines(worker, width))
        items = [item for item in events.items if item.subject == worker.id] if events else []
        self.query_one("#history", Panel).show(
            "STATE HISTORY", lambda width, look: history_lines(items, clock, width, look)
        )
        self.query_one("#log", Panel).show(
            f"LOG of {worker.id}, last lines of its last failed start",
            lambda width, look: log_lines(worker, width, look),
        )

    def selected(self, snapshot: Snapshot) -> Worker | None:
        answer, key = snapshot.get(Workers), self.query_one(LiveTable).selected
        if answer is None or not answer.items:
            return None
        return next((worker for worker in answer.items if worker.id == key), answer.items[0])

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "restart":
            return True if self.console.may_write and self.selected(self.console.feed.snapshot) else None
        return super().check_action(action, parameters)

    def action_restart(self) -> None:
        worker = self.selected(self.console.feed.snapshot)
        if worker is not None:
            self.console.ask(restart_question(worker))


def restart_question(worker: Worker) -> Question:
    running = worker.requests_running
    effects = [
        f"{worker.id} serves {worker.model} and is {worker.state.upper()}.",
        f"{count(running)} requests are in flight on it: they may finish first, up to the stop limit."
        if running
        else "Nothing is in flight on it.",
        "Until it is READY again, requests for its model are answered 503 with Retry-After.",
    ]
    if worker.state == "latched":
        effects.append("The latch is cleared: after later exits it is started again by itself.")
    return Question(
        title=f"Restart {worker.id}?",
        effects=tuple(effects),
        command=f"bayard workers restart {worker.id}",
        path=f"workers/{quote(worker.id)}/restart",
        button="Restart",
    )


def empty_lines(workers: Workers) -> list[Line]:
    if workers.items:
        return []
    return [
        plain("No workers: no plan is active, or the active one names no model."),
        plain("fix: bayard models import FILE"),
    ]


def detail_lines(worker: Worker, width: int) -> list[Line]:
    pairs = [
        ("reason", worker.reason or ("-" if worker.state != "ready" else "steps advance")),
        ("last exit", worker.last_exit or "none"),
        ("next start", "" if worker.retry_in_s is None else f"in {duration(worker.retry_in_s)}"),
        ("fix", worker.fix),
        (
            "loading",
            progress(worker) and f"{progress(worker)} of {size_pair(worker.load_done_bytes, worker.load_total_bytes)}",
        ),
        ("memory", f"{size_pair(worker.memory_bytes, worker.memory_planned_bytes)} (used/planned)"),
        ("knobs", "  ".join(f"{name} {value}" for name, value in worker.knobs.items())),
        ("kernels", "  ".join(f"{op} {kernel}" for op, kernel in worker.kernels.items())),
        *(("note", note) for note in worker.notes),
    ]
    shown: list[Line] = []
    for name, text in pairs:
        if text:
            shown += named(name, text, width, TONES.get(worker.state, Tone.PLAIN) if name == "reason" else Tone.PLAIN)
    return shown


def history_lines(items: list[Transition], clock: Clock, width: int, look: Look) -> list[Line]:
    newest_first = sorted(items, key=lambda item: (item.at, item.id), reverse=True)[:HISTORY]
    if not newest_first:
        return [[Cell("no change of its state is known", Tone.DIM)]]
    return [[Cell(look.fit(transition_text(item, clock, subject=False), width))] for item in newest_first]


def log_lines(worker: Worker, width: int, look: Look) -> list[Line]:
    if not worker.log_tail:
        return [[Cell(f"no start of it has failed; its log is {worker.log_path}", Tone.DIM)]]
    return [[Cell(look.fit(line, width))] for line in worker.log_tail[-LOG_LINES:]]
