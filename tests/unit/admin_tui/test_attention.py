"""Every fault has its reason and its fix, and the worst comes first."""

from __future__ import annotations

from admin_tui.answers import Accelerators, Models, Status, Workers
from admin_tui.attention import Severity, attention_from
from admin_tui.client import AdminClient
from admin_tui.errors import Mismatch
from admin_tui.feed import ENDPOINTS, Feed, Snapshot
from tests.fakes.admin_answers import Answers, faulty, healthy
from tests.fakes.admin_transport import FakeAdmin, StillClock


async def snapshot_of(answers: Answers, clock: StillClock | None = None) -> Snapshot:
    return await Feed(AdminClient(FakeAdmin(answers), where=""), clock or StillClock()).refresh(ENDPOINTS)


async def test_attention_when_healthy_is_empty() -> None:
    assert attention_from(await snapshot_of(healthy())) == []


async def test_attention_when_faulty_lists_failures_first_with_fixes() -> None:
    faults = attention_from(await snapshot_of(faulty()))
    assert [(f.severity, f.subject) for f in faults] == [
        (Severity.FAIL, "bge-m3-0"),
        (Severity.FAIL, "bge-m3"),
        (Severity.WARN, "nvidia1"),
        (Severity.WARN, "qwen3-0"),
    ]
    assert all(fault.fix for fault in faults)
    assert "5 fast exits" in faults[0].message


async def test_attention_when_clocks_differ_says_by_how_much() -> None:
    clock = StillClock()
    clock.pass_s(65)
    (fault,) = attention_from(await snapshot_of(healthy(), clock))
    assert "1 min 05 s behind" in fault.message


async def test_attention_when_an_answer_is_not_understood_says_which() -> None:
    answers = healthy()
    answers["workers"] = {"as_of": "never"}
    snapshot = await snapshot_of(answers)
    assert isinstance(snapshot.error(Workers), Mismatch)
    (fault,) = attention_from(snapshot)
    assert "workers cannot be shown" in fault.message


async def test_attention_when_status_has_another_reason_shows_it_once() -> None:
    answers = healthy()
    answers["status"]["reasons"] = ["disk /var is 97 % full"]
    (fault,) = attention_from(await snapshot_of(answers))
    assert fault.message == "disk /var is 97 % full"


def test_every_kind_that_faults_come_from_has_an_endpoint() -> None:
    assert {Status, Workers, Models, Accelerators} <= set(ENDPOINTS)
