"""Saved plans and rules in the store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import date, timedelta

import pytest

from daemon.planning.profile import Profile
from daemon.planning.strategy import Strategy
from daemon.store.base import utc_now
from daemon.store.schema import Plan
from daemon.store.session import Store
from daemon.strategy.plans import OPERATOR, Plans, SavedPlan, diff
from daemon.strategy.rules import Rules
from engine.errors import Conflict, InvalidParameter, NotFound, StoreError

MakeProfile = Callable[..., Profile]
Save = Callable[..., SavedPlan]


def test_plan_comes_back_equal(plans: Plans, profile: MakeProfile, saved: Save) -> None:
    wrote = saved("mine", profile(), profile("other"))
    assert plans.get("mine") == wrote
    assert plans.get("mine").profiles[0].choices
    assert wrote.memory_bytes == sum(p.memory.total_bytes for p in wrote.profiles)


def test_save_again_replaces_and_keeps_the_day_it_was_made(plans: Plans, profile: MakeProfile, saved: Save) -> None:
    first = saved("mine", profile())
    second = saved("mine", profile(context=8192))
    assert second.created_at == first.created_at
    assert second.updated_at >= first.updated_at
    assert [plan.name for plan in plans.all()] == ["mine"]
    assert second.profiles[0].context_tokens == 8192


@pytest.mark.parametrize("name", ["", "Mine", "a b", "-a", "x" * 65, "a/b"])
def test_save_refuses_a_name_that_is_none(plans: Plans, profile: MakeProfile, name: str) -> None:
    with pytest.raises(InvalidParameter):
        plans.save(SavedPlan(name, Strategy.LATENCY, OPERATOR, (profile(),), "", utc_now(), utc_now()), "")


def test_save_refuses_a_plan_without_models(plans: Plans) -> None:
    with pytest.raises(InvalidParameter, match="no models"):
        plans.save(SavedPlan("empty", Strategy.LATENCY, OPERATOR, (), "", utc_now(), utc_now()), "")


def test_delete_is_refused_while_something_names_the_plan(
    plans: Plans, rules: Rules, profile: MakeProfile, saved: Save
) -> None:
    saved("a", profile())
    saved("b", profile())
    plans.set_default("a", "test")
    with pytest.raises(Conflict) as caught:
        plans.delete("a")
    assert caught.value.message == "plan a is used as the default."
    assert caught.value.hint == "`bayard plan activate` another plan first."
    rules.add("day", "0 8 * * *", 3600, "b")
    with pytest.raises(Conflict, match="rule day"):
        plans.delete("b")
    rules.remove("day")
    rules.set_override("b", None, "", "ana")
    with pytest.raises(Conflict, match="operator's choice"):
        plans.delete("b")
    rules.release("ana")
    plans.delete("b")
    with pytest.raises(NotFound):
        plans.get("b")


def test_delete_even_default_leaves_no_default(plans: Plans, profile: MakeProfile, saved: Save) -> None:
    saved("a", profile())
    plans.set_default("a", "test")
    plans.delete("a", even_default=True)
    assert plans.default() is None


def test_plan_of_another_version_is_said_to_be_unreadable(
    plans: Plans, store: Store, profile: MakeProfile, saved: Save
) -> None:
    saved("old", profile())
    store.write_sync(lambda s: setattr(s.get(Plan, "old"), "profiles_json", '[{"model": "x"}]'))
    with pytest.raises(StoreError, match="another version"):
        plans.get("old")


def test_diff_names_what_a_switch_would_change(plans: Plans, profile: MakeProfile, saved: Save) -> None:
    a = saved("a", profile(), profile("gone"))
    b = saved("b", profile(strategy=Strategy.THROUGHPUT))
    rows = diff(a, b)
    assert ("gone", "loaded", "yes", "no") in rows
    assert {row[1] for row in rows if row[0] == "small"} == {
        "max_running",
        "token_budget",
        "prefill_chunk",
        "speculation_tokens",
        "max_step_ms",
    }
    assert diff(a, replace(a, name="c")) == []


def test_rule_is_kept_with_the_zone_it_was_made_in(rules: Rules, profile: MakeProfile, saved: Save) -> None:
    saved("a", profile())
    rule = rules.add("day", "0 8 * * mon-fri", 36_000, "a", "Asia/Tokyo")
    assert list(rules.all()) == [rule]
    assert rule.timezone == "Asia/Tokyo"
    assert rules.change("day", enabled=False).enabled is False
    holidays = [date(2026, 12, 25), date(2026, 5, 1), date(2026, 5, 1)]
    assert rules.change("day", except_dates=holidays).except_dates == (date(2026, 5, 1), date(2026, 12, 25))
    assert rules.change("day", enabled=True).except_dates == (date(2026, 5, 1), date(2026, 12, 25)), "what is not named"
    assert rules.change("day", except_dates=[]).except_dates == ()


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"cron": "0 8 30 2 *"}, InvalidParameter),
        ({"cron": "nonsense"}, InvalidParameter),
        ({"duration_s": 0}, InvalidParameter),
        ({"except_dates": [date(2020, 1, 1) + timedelta(days=n) for n in range(401)]}, InvalidParameter),
        ({"duration_s": 8 * 86_400}, InvalidParameter),
        ({"timezone": "Mars/Olympus"}, InvalidParameter),
        ({"plan": "nowhere"}, NotFound),
        ({"name": "Bad Name"}, InvalidParameter),
        ({"name": "taken"}, Conflict),
    ],
)
def test_rule_that_cannot_be_is_refused(
    rules: Rules, profile: MakeProfile, saved: Save, change: dict[str, object], error: type[Exception]
) -> None:
    saved("a", profile())
    rules.add("taken", "0 20 * * *", 3600, "a")
    asked: dict[str, object] = {"name": "day", "cron": "0 8 * * *", "duration_s": 3600, "plan": "a", "timezone": "UTC"}
    with pytest.raises(error):
        rules.add(**{**asked, **change})  # type: ignore[arg-type]
    assert [rule.name for rule in rules.all()] == ["taken"]


def test_rule_that_starts_with_another_plans_is_refused(rules: Rules, profile: MakeProfile, saved: Save) -> None:
    saved("a", profile())
    saved("b", profile())
    rules.add("day", "0 8 * * *", 3600, "a", "UTC")
    with pytest.raises(Conflict, match="rule day starts plan a at the same time"):
        rules.add("mon", "0 8 * * mon", 3600, "b", "UTC")
    rules.add("same", "0 8 * * mon", 3600, "a", "UTC")  # the same plan is no ambiguity
