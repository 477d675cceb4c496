"""The first line: which box, in which state, and how old this picture is."""

from __future__ import annotations

from datetime import datetime

from admin_tui.answers import Status, WhoAmI
from admin_tui.clock import Clock
from admin_tui.feed import Snapshot
from admin_tui.figures import count, duration
from admin_tui.link import LinkState
from admin_tui.look import Cell, Line, Tone, width_of

STATE_TONES = {"serving": Tone.GOOD, "starting": Tone.WARN, "degraded": Tone.WARN, "draining": Tone.WARN}
LINK_TONES = {LinkState.OK: Tone.GOOD, LinkState.CONNECTING: Tone.PLAIN, LinkState.STALE: Tone.WARN}


def heading(snapshot: Snapshot, clock: Clock, width: int) -> Line:
    """What does not fit is left out from the middle: the box's state and the age stay."""
    status, who = snapshot.get(Status), snapshot.get(WhoAmI)
    right = _freshness(snapshot, clock)
    left = [Cell(" BAYARD")]
    if status:
        left += [Cell(f"  {status.hostname}"), Cell("  "), Cell(status.state.upper(), state_tone(status.state))]
        room = width - width_of(left) - width_of(right) - 2
        workers, queue = f"workers {status.workers_ready}/{status.workers_wanted}", count(status.requests_waiting)
        for part in (f"plan {status.plan or 'none'}", workers, f"queue {queue}"):
            if len(part) + 2 <= room:
                left.append(Cell(f"  {part}"))
                room -= len(part) + 2
        if who and len(who.name) + 2 <= room:
            right.append(Cell(f"  {who.name}"))
    return [*left, Cell(" " * max(1, width - width_of(left) - width_of(right))), *right]


def _freshness(snapshot: Snapshot, clock: Clock) -> list[Cell]:
    link = snapshot.link
    state = link.state(clock.mono())
    cells = []
    status = snapshot.get(Status)
    if status:
        cells.append(Cell(f"as of {at_time(status.as_of, clock)}  "))
    age = link.age_s(clock.mono())
    words = state.value if age is None or state is LinkState.DOWN else f"{state.value} {duration(age)}"
    cells.append(Cell(words, LINK_TONES.get(state, Tone.BAD)))
    return cells


def state_tone(state: str) -> Tone:
    return STATE_TONES.get(state, Tone.BAD)


def at_time(at: datetime, clock: Clock) -> str:
    return f"{clock.local(at):%H:%M:%S}"
