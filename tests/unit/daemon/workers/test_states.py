"""The table of edges, and that every one of them has a test."""

from __future__ import annotations

from pathlib import Path

import pytest

from daemon.workers import states
from daemon.workers.states import EDGES, WorkerState, may_become

HERE = Path(__file__).parent


def test_module_imports_nothing_of_bayard() -> None:
    assert "daemon" not in (states.__doc__ or "")
    text = Path(states.__file__).read_text()
    assert "import daemon" not in text
    assert "from daemon" not in text
    assert "from engine" not in text


def test_every_state_has_its_ways_out() -> None:
    assert set(EDGES) == set(WorkerState)
    assert all(EDGES[state] for state in WorkerState)
    assert all(state not in EDGES[state] for state in WorkerState)


@pytest.mark.parametrize(("now", "then"), [(now, then) for now in EDGES for then in sorted(EDGES[now])])
def test_every_edge_has_a_test(now: WorkerState, then: WorkerState) -> None:
    """A test of the supervisor is named after each edge, as test_<from>_to_<to>_when_..."""
    tests = "".join(path.read_text() for path in HERE.glob("test_supervisor*.py"))
    assert f"def test_{now}_to_{then}_when_" in tests
    assert may_become(now, then)


def test_nothing_leads_from_latched_to_ready() -> None:
    assert not may_become(WorkerState.LATCHED, WorkerState.READY)
