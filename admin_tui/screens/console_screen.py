"""The base of every screen: the frame around its body, and one loop that fetches, shows and sleeps."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar, cast

import msgspec
from textual import events, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.geometry import Size
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Footer, Static

from admin_tui.answers import Accelerators, Events, Host, Models, Status, WhoAmI, Workers
from admin_tui.attention import attention_from
from admin_tui.feed import Snapshot
from admin_tui.link import LinkState
from admin_tui.look import Cell, Line, Tone
from admin_tui.widgets.heading import at_time, heading
from admin_tui.widgets.rail import rail, strip

if TYPE_CHECKING:
    from admin_tui.app import ConsoleApp

INTERVAL_S = 1.0
SMALLEST = Size(60, 18)
TOO_SMALL = "The console needs 60 columns and 18 rows. Without them: bayard status --watch"
COMMON: tuple[type[msgspec.Struct], ...] = (Status, WhoAmI, Host, Workers, Models, Accelerators, Events)


class ConsoleScreen(Screen[None]):
    """A subclass says its mode, what else it asks for, its widgets and how a snapshot is shown in them."""

    mode: ClassVar[str]
    asks: ClassVar[tuple[type[msgspec.Struct], ...]] = ()
    AUTO_FOCUS = "#body"

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("r", "refresh", "refresh", id="console.refresh", tooltip="Ask the daemon now"),
        Binding("space", "hold", "hold", id="console.hold", tooltip="Keep the view as it is until pressed again"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.held = False
        self._wake = asyncio.Event()
        self._frame: dict[str, object] = {}

    @property
    def console(self) -> ConsoleApp:
        return cast("ConsoleApp", self.app)

    # ------------------------------------------------------------ for the subclass

    def body(self) -> Iterable[Widget]:
        raise NotImplementedError

    def show(self, snapshot: Snapshot) -> None:
        raise NotImplementedError

    # ------------------------------------------------------------ the frame

    def compose(self) -> ComposeResult:
        yield Static(TOO_SMALL, markup=False, id="toosmall")
        yield Static(markup=False, id="heading")
        yield Static(markup=False, id="tabs")
        with Horizontal(id="middle"):
            yield Static(markup=False, id="rail")
            with VerticalScroll(id="body"):
                yield from self.body()
        yield Static(markup=False, id="banner")
        yield Static(markup=False, id="statusline")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        self.set_interval(1.0, self.show_frame)

    def on_screen_resume(self) -> None:
        self.show_all()
        # Not set_interval with exclusive workers: with slow answers each turn would cancel the one before.
        self._poll()

    def on_screen_suspend(self) -> None:
        if self not in self.app.screen_stack:  # else only a dialog is above it: go on
            self.workers.cancel_group(self, "poll")

    def on_resize(self, event: events.Resize) -> None:
        self.set_class(event.size.width < SMALLEST.width or event.size.height < SMALLEST.height, "-tiny")
        self._frame.clear()
        self.call_after_refresh(self.show_frame)

    @work(group="poll", exclusive=True)
    async def _poll(self) -> None:
        feed = self.console.feed
        while True:
            await feed.refresh(dict.fromkeys((*COMMON, *self.asks)))
            self.show_all()
            self._wake.clear()
            try:
                async with asyncio.timeout(feed.snapshot.link.wait_s(INTERVAL_S)):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def show_all(self) -> None:
        if not self.held:
            self.show(self.console.feed.snapshot)
        self.show_frame()

    def show_frame(self) -> None:
        """Heading, rail, banner and status line; called each second, as ages grow without answers too."""
        snapshot, clock, width = self.console.feed.snapshot, self.console.clock, self.size.width
        if not width:
            return
        faults = attention_from(snapshot)
        state = snapshot.link.state(clock.mono())
        self.set_class(state not in (LinkState.OK, LinkState.CONNECTING), "-old")
        self.set_class(bool(snapshot.link.failures), "-faulty")
        self._put("heading", [heading(snapshot, clock, width)])
        self._put("rail", rail(self.mode, faults, snapshot.get(Host)))
        self._put("tabs", [strip(self.mode, faults)])
        self._put("banner", banner(snapshot, at_time(snapshot.answered_at, clock) if snapshot.answered_at else None))
        self._put("statusline", [[Cell(self._status_text(state))]])

    def _status_text(self, state: LinkState) -> str:
        hold = "HELD (space follows again)  " if self.held else ""
        if self.console.messages:
            return hold + self.console.messages[-1]
        return hold + ("ready" if state is LinkState.OK else state.value.lower())

    def _put(self, name: str, lines: Sequence[Line]) -> None:
        content = tuple(tuple(line) for line in lines)
        if self._frame.get(name) != content:
            self._frame[name] = content
            self.query_one(f"#{name}", Static).update(self.console.look.paint_lines(content))

    def repaint(self) -> None:
        """After a change of theme."""
        self._frame.clear()
        self.show_all()

    # ------------------------------------------------------------ actions

    def action_refresh(self) -> None:
        self._wake.set()

    def action_hold(self) -> None:
        self.held = not self.held
        self.show_all()


def banner(snapshot: Snapshot, since: str | None) -> list[Line]:
    """Why there is no answer and what to do; what was last known stays on the screen above it."""
    link = snapshot.link
    if not link.failures:
        return [[]]
    head = f"NO ANSWER since {since}. What is shown is from then. " if since else "NO ANSWER yet. "
    lines: list[Line] = [[Cell(head, Tone.STRONG), Cell(link.reason)]]
    lines.append([Cell(f"{link.hint}   Asking again every {link.wait_s(INTERVAL_S):.0f} s; r asks now.")])
    return lines
