"""What can this box run? The models that are here, the plans made of them, and what the selected plan means.

Endpoints: models, plans; POST plans/{name}/activate.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar
from urllib.parse import quote

import msgspec
from textual import on
from textual.binding import Binding, BindingType
from textual.widget import Widget
from textual.widgets import DataTable

from admin_tui.answers import Host, Model, Models, Plan, PlannedModel, Plans, Workers
from admin_tui.feed import Snapshot
from admin_tui.figures import UNKNOWN, count, millis, size
from admin_tui.grid import Column, Row
from admin_tui.look import Cell, Line, Tone, named, plain
from admin_tui.screens.confirm import Question
from admin_tui.screens.console_screen import ConsoleScreen
from admin_tui.screens.panels import panel_of
from admin_tui.widgets.live_table import LiveTable
from admin_tui.widgets.panel import Panel

MODEL_COLUMNS = (
    Column("name", "name", 30, 0),
    Column("state", "state", 10, 0),
    Column("format", "format", 12, 3),
    Column("size", "size", 10, 1, right=True),
    Column("context", "context", 9, 2, right=True),
    Column("checksum", "checksum", 10, 4),
    Column("plans", "used by plans", 26, 5),
)
PLAN_COLUMNS = (
    Column("name", "name", 20, 0),
    Column("state", "state", 8, 0),
    Column("strategy", "strategy", 13, 2),
    Column("models", "models", 34, 1),
    Column("kv", "KV tokens", 10, 3, right=True),
)
BAR_CELLS = 60


class ModelsScreen(ConsoleScreen):
    mode = "models"
    AUTO_FOCUS = "#plans-table"
    asks: ClassVar[tuple[type[msgspec.Struct], ...]] = (Plans,)

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "A", "activate", "activate...", id="models.activate", tooltip="Activate the selected plan, after asking"
        ),
    ]

    def body(self) -> Iterable[Widget]:
        yield Panel("MODELS", id="models-title")
        yield LiveTable(MODEL_COLUMNS, id="models-table")
        yield Panel("PLANS", id="plans-title")
        yield LiveTable(PLAN_COLUMNS, id="plans-table")
        yield Panel("PLAN", id="plan")

    def show(self, snapshot: Snapshot) -> None:
        models, plans = snapshot.get(Models), snapshot.get(Plans)
        self.query_one("#models-title", Panel).show(
            f"MODELS ({len(models.items)})" if models else "MODELS",
            panel_of(snapshot, Models, lambda m, *_: [] if m.items else NO_MODELS),
        )
        self.query_one("#plans-title", Panel).show(
            f"PLANS ({len(plans.items)})" if plans else "PLANS",
            panel_of(snapshot, Plans, lambda p, *_: [] if p.items else NO_PLANS),
        )
        self.query_one("#models-table", LiveTable).sync([model_row(model) for model in models.items] if models else [])
        self.query_one("#plans-table", LiveTable).sync([plan_row(plan) for plan in plans.items] if plans else [])
        self.show_selected(snapshot)

    @on(DataTable.RowHighlighted, "#plans-table")
    def _selection_moved(self) -> None:
        self.show_selected(self.console.feed.snapshot)

    def show_selected(self, snapshot: Snapshot) -> None:
        plan, panel = self.selected(snapshot), self.query_one("#plan", Panel)
        panel.display = plan is not None
        if plan is not None:
            host = snapshot.get(Host)
            total_bytes = host.memory_total_bytes if host else None
            panel.show(f"PLAN {plan.name}", lambda width, _: plan_lines(plan, total_bytes, width))

    def selected(self, snapshot: Snapshot) -> Plan | None:
        answer, key = snapshot.get(Plans), self.query_one("#plans-table", LiveTable).selected
        if answer is None or not answer.items:
            return None
        return next((plan for plan in answer.items if plan.name == key), answer.items[0])

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "activate":
            plan = self.selected(self.console.feed.snapshot)
            return True if self.console.may_write and plan and not plan.active else None
        return super().check_action(action, parameters)

    def action_activate(self) -> None:
        snapshot = self.console.feed.snapshot
        plan, workers = self.selected(snapshot), snapshot.get(Workers)
        if plan is not None:
            running = sum(worker.requests_running or 0 for worker in workers.items) if workers else 0
            self.console.ask(activate_question(plan, running))


NO_MODELS: list[Line] = [plain("No models. Import one: bayard models import FILE")]
NO_PLANS: list[Line] = [plain("No plans. The first import makes two: latency and throughput.")]


def activate_question(plan: Plan, running: int) -> Question:
    models = ", ".join(part.model for part in plan.models) or "no model"
    return Question(
        title=f"Activate plan {plan.name}?",
        effects=(
            f"It loads {models} for {plan.strategy}.",
            f"{running} requests are running now. Knobs change inside running workers; "
            "a worker that has to be replaced is drained first.",
            "It holds until the next start of a schedule rule, or until another plan is activated.",
        ),
        command=f"bayard plan activate {plan.name}",
        path=f"plans/{quote(plan.name)}/activate",
        button="Activate",
    )


def model_row(model: Model) -> Row:
    state = "serving" if model.served else model.state
    tone = {"serving": Tone.GOOD, "ready": Tone.PLAIN}.get(state, Tone.BAD)
    return Row(
        model.name,
        {
            "name": Cell(model.name),
            "state": Cell(state.upper(), tone),
            "format": Cell(f"{model.format} {model.source_dtype}"),
            "size": Cell(size(model.weight_bytes)),
            "context": Cell(count(model.max_context_tokens)),
            "checksum": Cell("verified" if model.verified_at else UNKNOWN),
            "plans": Cell(" ".join(model.plans) or UNKNOWN),
        },
    )


def plan_row(plan: Plan) -> Row:
    kv_tokens = [part.kv_tokens for part in plan.models if part.kv_tokens is not None]
    return Row(
        plan.name,
        {
            "name": Cell(plan.name),
            "state": Cell("ACTIVE", Tone.GOOD) if plan.active else Cell("READY"),
            "strategy": Cell(plan.strategy),
            "models": Cell(", ".join(part.model for part in plan.models) or UNKNOWN),
            "kv": Cell(count(sum(kv_tokens) if kv_tokens else None)),
        },
    )


def plan_lines(plan: Plan, total_bytes: int | None, width: int) -> list[Line]:
    shown: list[Line] = [line for part in plan.models for line in part_lines(part, total_bytes, width)]
    if plan.notes:
        shown += named("note", plan.notes, width)
    return shown or [plain("it names no model")]


def part_lines(part: PlannedModel, total_bytes: int | None, width: int) -> list[Line]:
    bar, legend = memory_bar(part, total_bytes if part.device == "cpu" else None, width - 12)
    texts = [
        ("memory", bar),
        ("", legend),
        ("KV", f"{count(part.kv_tokens)} tokens; the context of one request is {count(part.context_tokens)}"),
        (
            "predicted",
            f"first token {millis(part.first_token_s)}   tokens/s {count(part.decode_tok_s)} for one request, "
            f"{count(part.batch_tok_s)} in all",
        ),
        *(("" if number else "why", reason) for number, reason in enumerate(part.reasons)),
    ]
    shown: list[Line] = [[Cell(f"{part.model} ", Tone.STRONG), Cell(f"on {part.device or UNKNOWN}")]]
    for name, text in texts:
        shown += named(name, text, width)
    return shown


def memory_bar(part: PlannedModel, total_bytes: int | None, width: int) -> tuple[str, str]:
    """Each part by the first letter of its name, and what the letters mean. total_bytes None: the bar is the plan."""
    if part.memory_bytes is None:
        return UNKNOWN, ""
    whole_bytes = max(total_bytes or part.memory_bytes, 1)
    cells = max(10, min(BAR_CELLS, width - 36))
    bar = "".join(piece.name[:1].lower() * round(piece.size_bytes / whole_bytes * cells) for piece in part.memory_parts)
    of = f" of {size(total_bytes)}" if total_bytes else ""
    legend = "   ".join(
        f"{piece.name[:1].lower()} {piece.name} {size(piece.size_bytes)}" for piece in part.memory_parts
    )
    return f"|{bar[:cells]:.<{cells}}| {size(part.memory_bytes)}{of}", legend
