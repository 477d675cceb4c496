"""The console as a whole: its screens, its keys, its palette, and the one place where a write is sent."""

from __future__ import annotations

import locale
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path, PurePath
from typing import ClassVar

from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.screen import Screen

from admin_tui.answers import WhoAmI
from admin_tui.client import AdminClient
from admin_tui.clock import Clock
from admin_tui.errors import ConsoleError
from admin_tui.feed import Feed
from admin_tui.look import Look
from admin_tui.screens.confirm import ConfirmScreen, Question
from admin_tui.screens.console_screen import ConsoleScreen
from admin_tui.screens.models import ModelsScreen
from admin_tui.screens.overview import OverviewScreen
from admin_tui.screens.reader import ReaderScreen
from admin_tui.screens.workers import WorkersScreen
from admin_tui.widgets.live_table import LiveTable
from admin_tui.widgets.rail import PLACES

MESSAGES_KEPT = 50
READ_ONLY_ROLES = frozenset({"viewer"})


class ConsoleApp(App[None]):
    """Owner of the client and the feed."""

    TITLE = "Bayard"
    ENABLE_COMMAND_PALETTE = True
    CSS_PATH: ClassVar[list[str | PurePath]] = [
        "base.tcss",
        *(f"screens/{name}.tcss" for name in ("overview", "models", "workers", "confirm", "reader")),
    ]
    MODES: ClassVar[dict[str, str | Callable[[], Screen[None]]]] = {
        "overview": OverviewScreen,
        "models": ModelsScreen,
        "workers": WorkersScreen,
    }
    DEFAULT_MODE = "overview"
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide")]  # noqa: RUF012 - the base declares it so
    VERTICAL_BREAKPOINTS = [(0, "-short"), (32, "-tall")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        *(
            Binding(
                place.key,
                f"go('{place.mode}')",
                place.title,
                show=False,
                id=f"go.{place.mode}",
                tooltip=f"Go to {place.title}",
            )
            for place in PLACES
        ),
        Binding("question_mark", "help", "help", id="console.help", tooltip="What the keys do", key_display="?"),
        Binding("ctrl+p", "command_palette", "palette", id="console.palette", tooltip="Every action, by name"),
        Binding("q", "quit", "quit", id="console.quit", tooltip="Leave the console; the box goes on"),
    ]

    def __init__(self, client: AdminClient, *, clock: Clock | None = None, unicode: bool = True) -> None:
        super().__init__()
        self.clock = clock or Clock()
        self.feed = Feed(client, self.clock)
        self.messages: deque[str] = deque(maxlen=MESSAGES_KEPT)
        self._unicode = unicode

    @property
    def look(self) -> Look:
        return Look(dark=self.current_theme.dark, unicode=self._unicode)

    @property
    def may_write(self) -> bool:
        """Whether what is shown is fresh enough, and the role high enough, to change anything."""
        who = self.feed.snapshot.get(WhoAmI)
        fresh = self.feed.snapshot.link.writable(self.clock.mono())
        return fresh and who is not None and who.role not in READ_ONLY_ROLES

    def on_mount(self) -> None:
        self.theme_changed_signal.subscribe(self, lambda _: self._repaint())

    async def on_unmount(self) -> None:
        await self.feed.client.close()

    def _repaint(self) -> None:
        for screen in self.screen_stack:
            if isinstance(screen, ConsoleScreen):
                for table in screen.query(LiveTable):
                    table.repaint()
                screen.repaint()

    # ------------------------------------------------------------ writes

    def ask(self, question: Question) -> None:
        """Show the dialog; send the write if the answer is yes."""

        def answered(yes: bool | None) -> None:
            if yes:
                self.run_worker(self._send(question), name="write", group="write", exclusive=False)

        self.push_screen(ConfirmScreen(question), answered)

    async def _send(self, question: Question) -> None:
        try:
            await self.feed.client.post(question.path, question.body)
        except ConsoleError as error:
            self.say(str(error), severity="error")
        else:
            self.say(f"done: {question.command}")
        if isinstance(self.screen, ConsoleScreen):
            self.screen.action_refresh()

    def say(self, message: str, severity: str = "information") -> None:
        """A toast that stays readable: in the status line, and among the messages in the palette."""
        self.messages.append(f"{self.clock.local(self.clock.now()):%H:%M:%S} {message}")
        self.notify(message, severity="error" if severity == "error" else "information", markup=False)

    # ------------------------------------------------------------ actions

    def action_go(self, mode: str) -> None:
        if mode != self.current_mode and isinstance(self.screen, ConsoleScreen):
            self.switch_mode(mode)

    def action_help(self) -> None:
        lines = ["Lower case looks, capitals change something and ask first.", ""]
        for binding in self.screen.active_bindings.values():
            key, what = self.get_key_display(binding.binding), binding.tooltip or binding.binding.tooltip
            if what:
                lines.append(f"{key:>8}   {what}{'' if binding.enabled else '   (not now)'}")
        lines += ["", f"Connected to {self.feed.client.where}"]
        self.push_screen(ReaderScreen("Keys", lines))

    def action_messages(self) -> None:
        self.push_screen(ReaderScreen("Messages", list(reversed(self.messages)) or ["none so far"]))

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Every action of the screen, by the text of its tooltip; Textual's own follow."""
        for binding in screen.active_bindings.values():
            found = binding.binding
            if found.id and found.tooltip and binding.enabled and found.action != "command_palette":
                title = found.description or found.tooltip
                yield SystemCommand(title, found.tooltip, self._runner(found.action, binding.node))
        yield SystemCommand("messages", "The last messages of this console", self.action_messages)
        yield SystemCommand("theme", "Change the colours", self.action_change_theme)

    def _runner(self, action: str, node: object) -> Callable[[], None]:
        def run() -> None:
            self.call_later(self.run_action, action, node)

        return run


def run_console(socket: Path) -> None:
    """Blocks: until the operator leaves."""
    unicode = "utf" in locale.getpreferredencoding(False).lower()
    ConsoleApp(AdminClient.over_socket(socket), unicode=unicode).run()
