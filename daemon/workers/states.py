"""What a supervised worker can be, and every way from one to the next. Imports nothing of Bayard."""

from __future__ import annotations

from enum import StrEnum


class WorkerState(StrEnum):
    STOPPED = "stopped"  # no process, none wanted now
    STARTING = "starting"  # process there, loading
    WARMING = "warming"  # loaded; warmed and proven before traffic
    READY = "ready"  # takes requests
    DRAINING = "draining"  # finishes what it has
    STOPPING = "stopping"  # told to end
    BACKOFF = "backoff"  # ended by itself, waits for the next start
    LATCHED = "latched"  # ended too fast too often; waits for an operator
    SLEEPING = "sleeping"  # waits to be woken: its process has given memory back, or ended on an operator's word
    LOST = "lost"  # gone or stuck while serving; being cleared away


_S = WorkerState
EDGES: dict[WorkerState, frozenset[WorkerState]] = {
    _S.STOPPED: frozenset({_S.STARTING, _S.SLEEPING}),
    _S.SLEEPING: frozenset({_S.WARMING, _S.STARTING, _S.STOPPING, _S.STOPPED}),
    _S.STARTING: frozenset({_S.WARMING, _S.STOPPING, _S.BACKOFF}),
    _S.WARMING: frozenset({_S.READY, _S.STOPPING, _S.BACKOFF}),
    _S.READY: frozenset({_S.DRAINING, _S.LOST}),
    _S.DRAINING: frozenset({_S.SLEEPING, _S.STOPPING, _S.LOST}),
    _S.STOPPING: frozenset({_S.STOPPED}),
    _S.BACKOFF: frozenset({_S.STARTING, _S.LATCHED, _S.STOPPED}),
    _S.LATCHED: frozenset({_S.STARTING, _S.STOPPED}),
    _S.LOST: frozenset({_S.BACKOFF, _S.STOPPED}),
}


def may_become(now: WorkerState, then: WorkerState) -> bool:
    return then in EDGES[now]
