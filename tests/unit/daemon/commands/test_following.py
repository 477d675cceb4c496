"""What `bayard plan activate` says of workers that are not as the plan wants them yet."""

from __future__ import annotations

from daemon.commands.plan_live import following


def test_activation_tells_whether_the_workers_are_there() -> None:
    assert following({"converged": True, "problem": None}) == ""
    assert following({"plan": "a"}) == "", "offline there are none"
    assert "once running streams have ended" in following({"converged": False, "problem": None})
    assert "it failed" in following({"converged": False, "problem": "it failed"})
