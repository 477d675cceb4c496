"""The console as an operator uses it: keys in, screen out."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Button

from admin_tui.screens.confirm import ConfirmScreen
from admin_tui.screens.console_screen import ConsoleScreen
from admin_tui.widgets.live_table import LiveTable
from tests.fakes.admin_answers import empty, faulty, healthy, hostile, worker

SIZE = (120, 40)
Make = Callable[[dict[str, Any]], Any]


async def settle(pilot: Pilot[None], console: Any) -> None:
    """Until the screen has shown the answers of one more refresh."""
    before = console.daemon.requests
    if isinstance(console.app.screen, ConsoleScreen):
        console.app.screen.action_refresh()
    for _ in range(100):
        await pilot.pause(0.02)
        if console.daemon.requests >= before + 7:
            break
    await pilot.pause()
    await pilot.pause()


async def test_console_when_healthy_shows_each_screen_by_its_key(console: Make) -> None:
    made = console(healthy())
    async with made.app.run_test(size=SIZE) as pilot:
        await settle(pilot, made)
        assert "SERVING" in made.text()
        assert "smollm2-135m" in made.text()
        for key, mark in (("3", "PLANS (2)"), ("4", "WORKERS (1)"), ("1", "NEEDS ATTENTION (0)")):
            await pilot.press(key)
            await settle(pilot, made)
            assert mark in made.text()


async def test_overview_when_faulty_shows_reasons_and_fixes(console: Make) -> None:
    made = console(faulty())
    async with made.app.run_test(size=SIZE) as pilot:
        await settle(pilot, made)
        text = made.text()
    assert "NEEDS ATTENTION (4)" in text
    assert "fix: raise the worker's memory limit, then R" in text
    assert "DEGRADED" in text


async def test_screens_when_empty_say_the_next_step(console: Make) -> None:
    made = console(empty())
    async with made.app.run_test(size=SIZE) as pilot:
        await settle(pilot, made)
        for key in "134":
            await pilot.press(key)
            await settle(pilot, made)
            assert "bayard models import FILE" in made.text()


async def test_console_when_daemon_goes_keeps_the_picture_and_comes_back(console: Make) -> None:
    made = console(healthy())
    async with made.app.run_test(size=SIZE) as pilot:
        await settle(pilot, made)
        made.daemon.down = True
        await settle(pilot, made)
        down = made.text()
        assert "NO ANSWER since 12:02:31" in down
        assert "bayard serve" in down
        assert "smollm2-135m" in down
        assert not made.app.may_write
        made.daemon.down = False
        await settle(pilot, made)
        assert "NO ANSWER" not in made.text()
        assert made.app.may_write


async def test_console_when_answers_grow_old_says_stale_and_refuses_writes(console: Make) -> None:
    made = console(healthy())
    async with made.app.run_test(size=SIZE) as pilot:
        await pilot.press("4")
        await settle(pilot, made)
        made.daemon.silent = True
        made.clock.pass_s(6)
        made.app.screen.show_frame()
        await pilot.pause()
        assert "STALE 6 s" in made.text()
        await pilot.press("R")
        await pilot.pause()
        assert not isinstance(made.app.screen, ConfirmScreen)


async def test_restart_asks_with_cancel_focused_then_posts_once(console: Make) -> None:
    made = console(healthy())
    async with made.app.run_test(size=SIZE) as pilot:
        await pilot.press("4")
        await settle(pilot, made)
        await pilot.press("R")
        await pilot.pause()
        assert isinstance(made.app.focused, Button)
        assert made.app.focused.id == "cancel"
        assert "bayard workers restart smollm2-0" in made.text()
        await pilot.press("enter")
        await settle(pilot, made)
        assert made.daemon.posts == []
        await pilot.press("R")
        await pilot.pause()
        await pilot.press("tab", "enter")
        await settle(pilot, made)
        assert [path for path, _ in made.daemon.posts] == ["workers/smollm2-0/restart"]


async def test_activate_when_refused_shows_code_message_and_hint(console: Make) -> None:
    made = console(healthy())
    error = {"code": "conflict", "message": "a switch is under way", "hint": "wait for it", "request_id": "r-7"}
    made.daemon.refusals["plans/throughput/activate"] = (409, error)
    async with made.app.run_test(size=SIZE) as pilot:
        await pilot.press("3")
        await settle(pilot, made)
        await pilot.press("j", "A")
        await pilot.pause()
        assert "bayard plan activate throughput" in made.text()
        await pilot.press("tab", "enter")
        await settle(pilot, made)
        assert "conflict: a switch is under way wait for it (request r-7)" in made.app.messages[-1]
        assert "conflict: a switch is under way" in made.text().splitlines()[-2]


async def test_activate_when_plan_is_active_is_not_offered(console: Make) -> None:
    made = console(healthy())
    async with made.app.run_test(size=SIZE) as pilot:
        await pilot.press("3")
        await settle(pilot, made)
        await pilot.press("A")
        await pilot.pause()
        assert not isinstance(made.app.screen, ConfirmScreen)


async def test_write_when_role_is_viewer_is_not_offered(console: Make) -> None:
    answers = healthy()
    answers["whoami"]["role"] = "viewer"
    made = console(answers)
    async with made.app.run_test(size=SIZE) as pilot:
        await pilot.press("4")
        await settle(pilot, made)
        await pilot.press("R")
        await pilot.pause()
        assert not isinstance(made.app.screen, ConfirmScreen)


async def test_panel_when_forbidden_says_so_and_others_stay_live(console: Make) -> None:
    made = console(healthy())
    made.daemon.refusals["metrics/summary"] = (403, {"code": "permission_denied", "message": "needs the role operator"})
    async with made.app.run_test(size=SIZE) as pilot:
        await settle(pilot, made)
        text = made.text()
    assert "FORBIDDEN  needs the role operator" in text
    assert "now latency (rule office)" in text


async def test_table_when_refreshed_keeps_the_cursor_and_touches_only_changes(
    console: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = healthy()
    answers["workers"]["items"] = [worker(f"w{number}") for number in range(8)]
    made = console(answers)
    async with made.app.run_test(size=SIZE) as pilot:
        await pilot.press("4")
        await settle(pilot, made)
        await pilot.press("j", "j", "j")
        table = made.app.screen.query_one(LiveTable)
        assert table.selected == "w3"
        touched = []
        original = table.update_cell
        monkeypatch.setattr(
            table, "update_cell", lambda *args, **more: touched.append(args[:2]) or original(*args, **more)
        )
        made.daemon.answers["workers"]["items"][5]["requests_running"] = 9
        await settle(pilot, made)
        assert touched == [("w5", "running")]
        assert table.selected == "w3"
        del made.daemon.answers["workers"]["items"][0]
        await settle(pilot, made)
        assert table.selected == "w3"
        assert "w3 smollm2-135m" in made.text()


async def test_hold_keeps_the_view_until_pressed_again(console: Make) -> None:
    made = console(healthy())
    async with made.app.run_test(size=SIZE) as pilot:
        await settle(pilot, made)
        await pilot.press("space")
        made.daemon.answers["metrics/summary"]["requests_done"] = 77_777
        await settle(pilot, made)
        assert "HELD" in made.text()
        assert "77,777" not in made.text()
        await pilot.press("space")
        await settle(pilot, made)
        assert "77,777" in made.text()


async def test_slow_daemon_never_blocks_a_key(console: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    made = console(healthy())
    original = made.daemon.handle_async_request

    async def slow(request: Any) -> Any:
        await asyncio.sleep(8)  # far longer than a busy machine takes to draw
        return await original(request)

    monkeypatch.setattr(made.daemon, "handle_async_request", slow)
    async with made.app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        began = time.monotonic()
        await pilot.press("4")
        await pilot.pause()
        assert "WORKERS" in made.text()
        assert time.monotonic() - began < 4.0


async def test_hostile_text_reaches_no_cell_as_control_or_markup(console: Make) -> None:
    made = console(hostile())
    async with made.app.run_test(size=SIZE) as pilot:
        for key in "134":
            await pilot.press(key)
            await settle(pilot, made)
            text = made.text()
            assert not [c for c in text if c != "\n" and (ord(c) < 32 or 0x7F <= ord(c) < 0xA0 or c == "\u202e")]
        assert "[@click=app.quit]go[/] [/b]" in text


async def test_bindings_with_an_id_are_all_in_the_palette(console: Make) -> None:
    made = console(healthy())
    async with made.app.run_test(size=SIZE) as pilot:
        await pilot.press("4")
        await settle(pilot, made)
        offered = {command.help for command in made.app.get_system_commands(made.app.screen)}
        bound = {
            active.binding.tooltip
            for active in made.app.screen.active_bindings.values()
            if active.binding.id and active.enabled and active.binding.action != "command_palette"
        }
    assert bound
    assert bound <= offered


async def test_help_lists_the_keys_of_the_screen(console: Make) -> None:
    made = console(healthy())
    async with made.app.run_test(size=SIZE) as pilot:
        await pilot.press("4")
        await settle(pilot, made)
        await pilot.press("question_mark")
        await pilot.pause()
        assert "Restart the selected worker, after asking" in made.text()
        await pilot.press("escape")
        await pilot.pause()
        assert isinstance(made.app.screen, ConsoleScreen)


async def test_polling_stops_on_a_hidden_screen(console: Make) -> None:
    made = console(healthy())
    async with made.app.run_test(size=SIZE) as pilot:
        await settle(pilot, made)
        for key in "3413":
            await pilot.press(key)
            await settle(pilot, made)
        polls = [worker for worker in made.app.workers if worker.group == "poll" and worker.is_running]
        assert len(polls) == 1


async def test_polling_goes_on_under_a_dialog(console: Make) -> None:
    made = console(healthy())
    async with made.app.run_test(size=SIZE) as pilot:
        await pilot.press("4")
        await settle(pilot, made)
        await pilot.press("R")
        await pilot.pause(0.1)
        before = made.daemon.requests
        await pilot.pause(1.3)
        assert made.daemon.requests > before
        assert made.app.focused is not None
        assert made.app.focused.id == "cancel"


@pytest.mark.parametrize("size", [(80, 24), (60, 18), (59, 18)])
async def test_console_when_small_stays_usable_or_says_why(console: Make, size: tuple[int, int]) -> None:
    made = console(faulty())
    async with made.app.run_test(size=size) as pilot:
        await settle(pilot, made)
        text = made.text()
        if size[0] < 60:
            assert "bayard status --watch" in text
        else:
            assert "DEGRADED" in text
            assert ">1 Overview" in text
            await pilot.press("4")
            await settle(pilot, made)
            assert "LATCHED" in made.text()
