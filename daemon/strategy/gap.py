"""The gap of a switch that has to drain first: how long a model will answer nothing, and how long it did."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from daemon.events import Event
from daemon.planning.fit import WEIGHTS
from daemon.planning.profile import Profile
from daemon.workers.states import WorkerState
from daemon.workers.view import WorkerView

_END_S = 0.3  # a worker that has nothing left takes so long to end
_START_S = 3.0  # interpreter and libraries, where this daemon has not seen it yet
_READ_BYTES_PER_S = 1e9  # where no weights were read yet
_WAKE_S = 0.5
_LINK_BYTES_PER_S = 1e10


def predicted_gap_s(view: WorkerView | None, profile: Profile, events: Sequence[Event]) -> float:
    """From the drained worker's end to the new one's readiness, by what the old one's start took."""
    ready = None if view is None else view.ready
    if ready is None or view is None:
        return _END_S + _START_S + profile.memory.of(WEIGHTS) / _READ_BYTES_PER_S
    started_s = _span_s(events, view.name, WorkerState.STARTING, WorkerState.READY)
    outside_s = _START_S if started_s is None else max(0.0, started_s - ready.load_s)
    rate = ready.read_bytes / ready.read_s if ready.read_s and ready.read_bytes else None
    read_s = profile.memory.of(WEIGHTS) / rate if rate is not None else ready.read_s
    return _END_S + outside_s + max(0.0, ready.load_s - ready.read_s) + read_s


def predicted_wake_s(profile: Profile) -> float:
    """Of one that sleeps with its process: a proof, and on an accelerator its weights' way over the link."""
    return _WAKE_S + (0.0 if profile.device == "cpu" else profile.memory.of(WEIGHTS) / _LINK_BYTES_PER_S)


def measured_gap_s(events: Sequence[Event], old: str, new: str, after_id: int) -> float | None:
    """Between the last moment that the old worker took requests and the first that the new one does.

    They may be one and the same. None if it was not seen
    """
    left: datetime | None = None
    for event in events:
        if event.id <= after_id or event.kind != "worker":
            continue
        if event.subject == old and event.from_state == WorkerState.READY and event.to_state != WorkerState.READY:
            left = left or event.at
        serves = event.subject == new and event.to_state == WorkerState.READY and event.from_state != WorkerState.READY
        if serves and left is not None:
            return (event.at - left).total_seconds()
    return None


def _span_s(events: Sequence[Event], worker: str, begin: WorkerState, end: WorkerState) -> float | None:
    """Of the worker's last way from one state to another."""
    began: datetime | None = None
    found: float | None = None
    for event in events:
        if (event.kind, event.subject) != ("worker", worker):
            continue
        if event.to_state == begin and event.from_state != begin:
            began = event.at
        elif event.to_state == end and began is not None:
            found, began = (event.at - began).total_seconds(), None
    return found
