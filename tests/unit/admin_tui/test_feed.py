"""What is known is kept when something fails; only what failed is marked."""

from __future__ import annotations

from admin_tui.answers import Models, Status, Workers
from admin_tui.client import AdminClient
from admin_tui.errors import Refused, Unreachable
from admin_tui.feed import Feed
from admin_tui.link import LinkState
from tests.fakes.admin_answers import healthy
from tests.fakes.admin_transport import FakeAdmin, StillClock


async def test_refresh_when_one_endpoint_refuses_marks_that_one_only() -> None:
    daemon, clock = FakeAdmin(healthy()), StillClock()
    daemon.refusals["models"] = (403, {"code": "permission_denied", "message": "needs viewer"})
    snapshot = await Feed(AdminClient(daemon, where=""), clock).refresh([Status, Models, Workers])
    assert isinstance(snapshot.error(Models), Refused)
    assert snapshot.get(Status) is not None
    assert snapshot.link.state(clock.mono()) is LinkState.OK


async def test_refresh_when_daemon_goes_keeps_the_last_answers_and_recovers() -> None:
    daemon, clock = FakeAdmin(healthy()), StillClock()
    feed = Feed(AdminClient(daemon, where=""), clock)
    await feed.refresh([Status])
    daemon.down = True
    clock.pass_s(3)
    snapshot = await feed.refresh([Status])
    assert snapshot.get(Status) is not None
    assert isinstance(snapshot.error(Status), Unreachable)
    assert snapshot.link.state(clock.mono()) is LinkState.DOWN
    daemon.down = False
    snapshot = await feed.refresh([Status])
    assert snapshot.error(Status) is None
    assert snapshot.link.state(clock.mono()) is LinkState.OK
