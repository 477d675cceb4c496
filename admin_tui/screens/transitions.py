"""Changes of state as lines, the newest first."""

from __future__ import annotations

from collections.abc import Sequence

from admin_tui.answers import Transition
from admin_tui.clock import Clock
from admin_tui.look import Cell, Line, Look, Tone


def transition_lines(items: Sequence[Transition], clock: Clock, width: int, look: Look) -> list[Line]:
    if not items:
        return [[Cell("nothing has changed since the start", Tone.DIM)]]
    newest_first = sorted(items, key=lambda item: (item.at, item.id), reverse=True)
    return [[Cell(look.fit(transition_text(item, clock), width))] for item in newest_first]


def transition_text(item: Transition, clock: Clock, *, subject: bool = True) -> str:
    states = [state.upper() if item.kind == "worker" else state for state in (item.from_state, item.to_state) if state]
    what = " -> ".join(dict.fromkeys(states))
    if not subject:
        who = ""
    elif item.kind in ("worker", "appliance"):
        who = f"{item.subject}  "
    else:
        who = f"{item.kind}  " if item.subject in states else f"{item.kind} {item.subject}  "
    return f"{clock.local(item.at):%H:%M:%S}  {who}{what}  {item.reason}".rstrip()
