"""Acknowledged faults: known over restarts, forgotten with their fault."""

from __future__ import annotations

from datetime import timedelta

from daemon.api.admin.faults import SETTLING_S, Attention, Fault, Severity
from daemon.store.marks import MarkKind, Marks
from daemon.store.session import Store


def test_acknowledgement_outlives_a_restart_until_its_fault_is_gone(store: Store) -> None:
    marks = Marks(store)
    one, other = (Fault("worker", name, Severity.FAIL, "it is latched", "mend it") for name in "ab")
    before = Attention(marks)
    before.note([one, other])
    for fault in (one, other):
        before.acknowledge(fault, "ops")
    before.acknowledge(one, "somebody later")
    after = Attention(marks)
    after.note([])
    after.note([one])
    assert {ack.by for ack in after.acknowledged.values()} == {"ops"}, "a start takes a while to see what is wrong"
    after.note([])
    assert after.acknowledged.keys() == {other.id}, "what was seen since and is gone is forgotten"
    after.began_at -= timedelta(seconds=SETTLING_S)
    after.note([])
    assert not marks.all(MarkKind.ACKNOWLEDGED)
