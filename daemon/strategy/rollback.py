"""Which plan was in force before the present one, from the event log."""

from __future__ import annotations

from collections.abc import Sequence

from daemon.events import Event
from engine.errors import NotFound


def plan_before(events: Sequence[Event], now: str | None) -> str:
    """Raises: NotFound where the log knows of no other."""
    for event in reversed(events):
        moved = event.kind == "plan" and event.subject == event.to_state and event.from_state is not None
        if moved and event.to_state == now and event.from_state not in (now, "saved"):
            return str(event.from_state)
    raise NotFound(
        f"no plan is known to have been in force before {now or 'this'}.", "Name one: `bayard plan activate`."
    )
