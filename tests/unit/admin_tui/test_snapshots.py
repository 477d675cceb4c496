"""What each screen looks like, at the size of a terminal of today and of the smallest serial console.

After a wanted change: pytest tests/unit/admin_tui/test_snapshots.py --snapshot-update, and look at the difference.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from textual.pilot import Pilot

from tests.fakes.admin_answers import empty, faulty, healthy, hostile

LARGE, SMALL = (120, 40), (80, 24)
Make = Callable[[dict[str, Any]], Any]
Compare = Callable[..., bool]
KEYS = {"overview": "1", "models": "3", "workers": "4"}


async def until(pilot: Pilot[None], happened: Callable[[], bool]) -> None:
    """A fixed pause is too short on a busy machine, or long enough for a second poll."""
    for _ in range(1_000):
        if happened():
            await pilot.pause()
            return
        await pilot.pause(0.01)
    raise AssertionError("it did not happen")


def fail_once(console: Any) -> None:
    """What fails from now on fails once: the line that says when it is asked again stays, however slow the machine."""
    console.daemon.hangs = lambda: has_failed(console)


def has_failed(console: Any) -> bool:
    return bool(console.app.feed.snapshot.link.failures == 1)


async def shown(pilot: Pilot[None], console: Any) -> None:
    for _ in range(100):
        await pilot.pause(0.02)
        if console.app.feed.snapshot.answers:
            break
    await pilot.pause(0.1)


def look_at(console: Any, *keys: str) -> Callable[[Pilot[None]], Any]:
    async def run(pilot: Pilot[None]) -> None:
        await shown(pilot, console)
        for key in keys:
            await pilot.press(key)
            await pilot.pause(0.15)

    return run


@pytest.mark.parametrize("size", [LARGE, SMALL], ids=["120x40", "80x24"])
@pytest.mark.parametrize("answers", [healthy, faulty, empty, hostile], ids=lambda a: a.__name__)
@pytest.mark.parametrize("screen", KEYS)
def test_screen(
    snap_compare: Compare, console: Make, screen: str, answers: Callable[[], Any], size: tuple[int, int]
) -> None:
    made = console(answers())
    assert snap_compare(made.app, terminal_size=size, run_before=look_at(made, KEYS[screen]))


@pytest.mark.parametrize("size", [LARGE, SMALL], ids=["120x40", "80x24"])
def test_overview_when_daemon_is_down(snap_compare: Compare, console: Make, size: tuple[int, int]) -> None:
    made = console(faulty())

    async def run(pilot: Pilot[None]) -> None:
        await shown(pilot, made)
        fail_once(made)
        made.daemon.down = True
        made.clock.pass_s(40)
        await until(pilot, lambda: has_failed(made))

    assert snap_compare(made.app, terminal_size=size, run_before=run)


@pytest.mark.parametrize("size", [LARGE, SMALL], ids=["120x40", "80x24"])
def test_workers_when_stale(snap_compare: Compare, console: Make, size: tuple[int, int]) -> None:
    made = console(healthy())

    async def run(pilot: Pilot[None]) -> None:
        await look_at(made, "4")(pilot)
        fail_once(made)
        made.daemon.silent = True
        made.clock.pass_s(8)
        await pilot.press("r")
        await until(pilot, lambda: has_failed(made) and made.app.screen.has_class("-old"))

    assert snap_compare(made.app, terminal_size=size, run_before=run)


def test_overview_when_nothing_ever_answered(snap_compare: Compare, console: Make) -> None:
    made = console(healthy())
    fail_once(made)
    made.daemon.down = True

    async def run(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: has_failed(made))

    assert snap_compare(made.app, terminal_size=SMALL, run_before=run)


def test_overview_when_forbidden(snap_compare: Compare, console: Make) -> None:
    made = console(healthy())
    for path in made.daemon.answers:
        if path != "whoami":
            error = {"code": "permission_denied", "message": f"/{path} needs the role viewer", "hint": "ask an admin"}
            made.daemon.refusals[path] = (403, error)
    made.daemon.answers["whoami"] = {"name": "guest", "role": "viewer"}
    assert snap_compare(made.app, terminal_size=LARGE, run_before=look_at(made))


@pytest.mark.parametrize(("screen", "key"), [("workers", "R"), ("models", "A")])
def test_dialog(snap_compare: Compare, console: Make, screen: str, key: str) -> None:
    made = console(healthy())
    keys = (KEYS[screen], *(("j",) if screen == "models" else ()), key)
    assert snap_compare(made.app, terminal_size=SMALL, run_before=look_at(made, *keys))


def test_help(snap_compare: Compare, console: Make) -> None:
    made = console(healthy())
    assert snap_compare(made.app, terminal_size=LARGE, run_before=look_at(made, "4", "question_mark"))


@pytest.mark.parametrize("screen", ["overview", "workers"])
def test_screen_in_a_light_theme(snap_compare: Compare, console: Make, screen: str) -> None:
    made = console(faulty())
    made.app.theme = "textual-light"
    assert snap_compare(made.app, terminal_size=LARGE, run_before=look_at(made, KEYS[screen]))


@pytest.mark.parametrize("screen", ["overview", "workers"])
def test_screen_without_colour(
    snap_compare: Compare, console: Make, screen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    made = console(faulty())
    assert snap_compare(made.app, terminal_size=LARGE, run_before=look_at(made, KEYS[screen]))
