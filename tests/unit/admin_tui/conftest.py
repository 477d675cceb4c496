"""The console over a fake daemon, and what a terminal would show of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from textual.app import App

from admin_tui.app import ConsoleApp
from admin_tui.client import AdminClient
from tests.fakes.admin_answers import Answers
from tests.fakes.admin_transport import FakeAdmin, StillClock

SOCKET = "/run/bayard/admin.sock"


class Console:
    """An app, with the daemon and the clock that it believes in."""

    def __init__(self, answers: Answers) -> None:
        self.daemon = FakeAdmin(answers)
        self.clock = StillClock()
        self.app = ConsoleApp(AdminClient(self.daemon, where=SOCKET), clock=self.clock)
        self.app.animation_level = "none"

    def text(self) -> str:
        return screen_text(self.app)


def screen_text(app: App[None]) -> str:
    strips = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip) for strip in strips)


@pytest.fixture
def console() -> Callable[[Answers], Console]:
    return Console
