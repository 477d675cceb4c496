"""plan_at as a pure function of rules and clock, over a year with clock changes."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.strategy.schedule import Override, Rule, clashes, day_of, plan_at, starts_of, timeline
from engine.errors import InvalidParameter

DAY = Rule(1, "day", "0 8 * * mon-fri", 10 * 3600, "latency", "Europe/Berlin")
NOON = Rule(2, "noon", "0 12 * * *", 3600, "lunch", "Europe/Berlin")
BERLIN = ZoneInfo("Europe/Berlin")


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=BERLIN)


def test_no_rule_gives_the_default() -> None:
    decision = plan_at([], at("2026-06-01T10:00"), "throughput")
    assert (decision.plan, decision.since_at, decision.until_at) == ("throughput", None, None)


def test_no_plan_at_all_gives_none_with_a_reason() -> None:
    assert plan_at([], at("2026-06-01T10:00"), None).reason == "no plan has been made yet"


def test_rule_in_force_says_since_until_and_why() -> None:
    decision = plan_at([DAY], at("2026-06-01T10:00"), "throughput")
    assert (decision.plan, decision.rule) == ("latency", "day")
    assert decision.since_at == at("2026-06-01T08:00")
    assert decision.until_at == at("2026-06-01T18:00")
    assert "day" in decision.reason
    assert "10 h" in decision.reason


def test_rule_does_not_start_on_excepted_dates_of_its_own_zone() -> None:
    holiday = replace(DAY, except_dates=(date(2026, 6, 1), date(2026, 6, 3)))
    days = {n: plan_at([holiday], at(f"2026-06-0{n}T10:00"), "rest", look_ahead=False).plan for n in range(1, 5)}
    assert days == {1: "rest", 2: "latency", 3: "rest", 4: "latency"}
    night = replace(DAY, cron="0 22 * * *", except_dates=(date(2026, 6, 2),))
    assert plan_at([night], at("2026-06-02T01:00"), "rest", look_ahead=False).plan == "latency", "begun the day before"
    assert plan_at([night], at("2026-06-03T01:00"), "rest", look_ahead=False).plan == "rest"
    segments = day_of([holiday], date(2026, 6, 1), BERLIN, "rest")
    assert [decision.plan for _, _, decision in segments] == ["rest"]


def test_start_and_end_are_exact() -> None:
    for when, plan in (("07:59", "n"), ("08:00", "latency"), ("17:59", "latency"), ("18:00", "n")):
        assert plan_at([DAY], at(f"2026-06-01T{when}"), "n", look_ahead=False).plan == plan


def test_latest_start_wins_an_overlap_and_the_earlier_rule_resumes() -> None:
    rules = [NOON, DAY]
    hours = {h: plan_at(rules, at(f"2026-06-01T{h:02}:30"), "n", look_ahead=False).plan for h in (9, 12, 13, 19)}
    assert hours == {9: "latency", 12: "lunch", 13: "latency", 19: "n"}


def test_disabled_rule_is_not_seen() -> None:
    off = Rule(1, "day", "0 8 * * *", 36_000, "latency", "UTC", enabled=False)
    assert plan_at([off], at("2026-06-01T10:00"), "n").plan == "n"


def test_override_stands_above_rules_until_it_ends() -> None:
    override = Override("special", at("2026-06-01T09:00"), at("2026-06-01T11:00"), "a fair", "ana")
    inside = plan_at([DAY], at("2026-06-01T10:00"), "n", override)
    assert (inside.plan, inside.until_at) == ("special", at("2026-06-01T11:00"))
    assert "ana" in inside.reason
    assert plan_at([DAY], at("2026-06-01T11:00"), "n", override).plan == "latency"
    forever = Override("special", at("2026-06-01T09:00"), None)
    assert plan_at([DAY], at("2027-06-01T10:00"), "n", forever).until_at is None


def test_override_says_when_it_ends_though_the_same_plan_goes_on() -> None:
    held = Override("n", at("2026-06-01T02:00"), at("2026-06-01T02:05"), "held", "ana")
    assert plan_at([], at("2026-06-01T02:01"), "n", held).until_at == at("2026-06-01T02:05")


@pytest.mark.parametrize("day", [date.min, date.max, date(9999, 12, 30), date(1969, 12, 31)])
def test_day_at_an_end_of_the_calendar_is_refused(day: date) -> None:
    with pytest.raises(InvalidParameter, match="years 2000 to 2999"):
        day_of([DAY], day, ZoneInfo("Pacific/Auckland"), "n")


def test_until_skips_changes_that_keep_the_plan() -> None:
    again = Rule(3, "again", "0 12 * * *", 7200, "latency", "Europe/Berlin")
    assert plan_at([DAY, again], at("2026-06-01T10:00"), "n").until_at == at("2026-06-01T18:00")


def test_day_of_a_clock_change_is_covered_without_gaps() -> None:
    for day, hours in ((date(2026, 3, 29), 23), (date(2026, 10, 25), 25), (date(2026, 6, 1), 24)):
        segments = day_of([DAY, NOON], day, BERLIN, "n")
        assert all(one[1] == other[0] for one, other in pairwise(segments))
        spent = segments[-1][1].astimezone(UTC) - segments[0][0].astimezone(UTC)
        assert spent == timedelta(hours=hours)


def test_clash_names_rule_and_instant() -> None:
    friday = Rule(0, "f", "0 8 * * fri", 3600, "other", "Europe/Berlin")
    found = clashes(friday, [DAY], at("2026-06-01T00:00"))
    assert found is not None
    assert "day" in found
    assert "2026-06-05 08:00" in found
    assert clashes(friday, [NOON], at("2026-06-01T00:00")) is None


RULES = st.lists(
    st.builds(
        Rule,
        id=st.integers(1, 99),
        name=st.just("r"),
        cron=st.builds(
            "{} {} * * {}".format,
            st.sampled_from([0, 15, 30]),
            st.sampled_from(["2", "3", "8", "22", "*/6", "1-3"]),
            st.sampled_from(["*", "mon-fri", "sun"]),
        ),
        duration_s=st.sampled_from([900, 3600, 7 * 3600, 30 * 3600]),
        plan=st.sampled_from(["a", "b", "c"]),
        timezone=st.sampled_from(["Europe/Berlin", "America/New_York", "UTC"]),
    ),
    max_size=4,
    unique_by=lambda rule: rule.id,
)


@given(RULES, st.datetimes(datetime(2026, 1, 1), datetime(2026, 12, 30)), st.lists(st.integers(0, 2880), max_size=12))
@settings(max_examples=80, deadline=None)
def test_timeline_agrees_with_plan_at_for_any_moment(rules: list[Rule], begin: datetime, minutes: list[int]) -> None:
    """However the clock jumps, the plan of a moment is the one the timeline shows: nothing is remembered."""
    begin = begin.replace(tzinfo=UTC, second=0, microsecond=0)
    segments = timeline(rules, begin, begin + timedelta(minutes=2881), "default")
    for offset in minutes:
        moment = begin + timedelta(minutes=offset)
        decision = next(d for start, end, d in segments if start <= moment < end)
        assert plan_at(rules, moment, "default", look_ahead=False).plan == decision.plan


@given(RULES, st.datetimes(datetime(2026, 1, 1), datetime(2026, 12, 30)))
@settings(max_examples=80, deadline=None)
def test_every_start_takes_force_and_ends_in_time(rules: list[Rule], begin: datetime) -> None:
    """No missed switch: at a start its rule, or another that starts then too, is in force; none outlasts its time."""
    begin = begin.replace(tzinfo=UTC, second=0, microsecond=0)
    for rule in rules:
        start = starts_of(rule.cron, rule.timezone).next_after(begin, timedelta(days=9))
        assert start is not None
        decision = plan_at(rules, start, "default", look_ahead=False)
        assert decision.since_at == start
        rivals = {
            r.plan for r in rules if start in set(starts_of(r.cron, r.timezone).between(start - timedelta(1), start))
        }
        assert decision.plan in rivals
        after = plan_at([rule], start + rule.duration, "default", look_ahead=False)
        assert after.since_at is None or after.since_at > start


@given(RULES, st.datetimes(datetime(2026, 1, 1), datetime(2026, 12, 30)))
@settings(max_examples=40, deadline=None)
def test_until_is_the_first_moment_of_another_plan(rules: list[Rule], begin: datetime) -> None:
    begin = begin.replace(tzinfo=UTC, second=0, microsecond=0)
    decision = plan_at(rules, begin, "default")
    if decision.until_at is not None:
        before = plan_at(rules, decision.until_at - timedelta(seconds=1), "default", look_ahead=False)
        after = plan_at(rules, decision.until_at, "default", look_ahead=False)
        assert before.plan == decision.plan != after.plan
