"""Which plan the box should run at a moment: a pure function of rules, override, default and clock.

A rule is in force from each of its starts for its duration (elapsed time, so a clock change does not stretch it). Of
those in force the one that started last wins; an override stands above all rules. Nothing is remembered between two
calls, which is why a box that was off, or whose clock jumped, corrects itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from daemon.strategy.cron import CronStarts
from engine.errors import InvalidParameter

FIRST_YEAR, LAST_YEAR = 2000, 2999  # nearer the ends of the calendar no start can be counted on from
_HORIZON = timedelta(days=8)
_MOST_BOUNDARIES = 100


@dataclass(frozen=True, slots=True)
class Rule:
    id: int
    name: str
    cron: str
    duration_s: int
    plan: str
    timezone: str  # IANA name
    enabled: bool = True
    except_dates: tuple[date, ...] = ()  # local dates on which it does not start

    @property
    def starts(self) -> CronStarts:
        return starts_of(self.cron, self.timezone, self.except_dates)

    @property
    def duration(self) -> timedelta:
        return timedelta(seconds=self.duration_s)


@dataclass(frozen=True, slots=True)
class Override:
    """An operator's choice above the rules. ends_at None: until it is released."""

    plan: str
    starts_at: datetime
    ends_at: datetime | None
    reason: str = ""
    created_by: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    plan: str | None  # None: nothing is to run
    since_at: datetime | None  # None: since before the horizon, or by default
    until_at: datetime | None  # of an override its end, else the next change; None: none within the next days
    reason: str
    rule: str | None = None  # name of the rule that decided


@lru_cache(maxsize=256)
def starts_of(cron: str, timezone: str, except_dates: tuple[date, ...] = ()) -> CronStarts:
    return CronStarts(cron, ZoneInfo(timezone), except_dates)


def plan_at(
    rules: Sequence[Rule],
    now: datetime,
    default: str | None,
    override: Override | None = None,
    *,
    look_ahead: bool = True,
) -> Decision:
    """The plan for `now`, since when, until when, and why.

    look_ahead False leaves until_at None and costs a fraction.
    """
    decided = _decide(rules, now, default, override)
    if not look_ahead:
        return decided
    return Decision(
        decided.plan, decided.since_at, _until(rules, now, default, override, decided), decided.reason, decided.rule
    )


def timeline(
    rules: Sequence[Rule], begin: datetime, end: datetime, default: str | None, override: Override | None = None
) -> list[tuple[datetime, datetime, Decision]]:
    """Segments (from, to, decision) that cover [begin, end) without gaps; neighbours have different plans or rules."""
    segments: list[tuple[datetime, datetime, Decision]] = []
    moment = begin
    while moment < end:
        decision = _decide(rules, moment, default, override)
        upto = min(end, _next_boundary(rules, moment, override, end - moment) or end)
        if segments and _same(segments[-1][2], decision):
            segments[-1] = (segments[-1][0], upto, segments[-1][2])
        else:
            segments.append((moment, upto, decision))
        moment = upto
    return segments


def day_of(
    rules: Sequence[Rule], day: date, zone: ZoneInfo, default: str | None, override: Override | None = None
) -> list[tuple[datetime, datetime, Decision]]:
    """The segments of one local day, in local time; a day of a clock change has 23 or 25 hours.

    Raises: InvalidParameter for a day that no schedule reaches
    """
    if not FIRST_YEAR <= day.year <= LAST_YEAR:
        raise InvalidParameter(
            f"{day} is not in the years {FIRST_YEAR} to {LAST_YEAR}.", "Ask for a nearer day.", param="date"
        )
    begin = datetime.combine(day, time(), zone)
    end = datetime.combine(day + timedelta(days=1), time(), zone)
    found = timeline(rules, begin.astimezone(UTC), end.astimezone(UTC), default, override)
    return [(b.astimezone(zone), e.astimezone(zone), decision) for b, e, decision in found]


def _same(one: Decision, other: Decision) -> bool:
    return one.plan == other.plan and one.rule == other.rule


def _decide(rules: Sequence[Rule], now: datetime, default: str | None, override: Override | None) -> Decision:
    if override is not None and _in_force(override, now):
        why = f": {override.reason}" if override.reason else ""
        who = f" by {override.created_by}" if override.created_by else ""
        return Decision(override.plan, override.starts_at, None, f"chosen{who}{why}")
    best: tuple[datetime, int, Rule] | None = None
    for rule in rules:
        if not rule.enabled:
            continue
        start = rule.starts.last_at(now, rule.duration)
        # Equal starts of two rules are refused when a rule is added; the newer one wins if it happens all the same.
        if start is not None and (best is None or (start, rule.id) > best[:2]):
            best = (start, rule.id, rule)
    if best is None:
        why = "no schedule rule is in force: the default plan" if rules else "the default plan"
        return Decision(default, None, None, why if default is not None else "no plan has been made yet")
    start, _, rule = best
    return Decision(rule.plan, start, None, f"rule {rule.name} ({rule.cron}, {_spelled(rule.duration)})", rule.name)


def _in_force(override: Override, now: datetime) -> bool:
    return override.starts_at <= now and (override.ends_at is None or now < override.ends_at)


def _until(
    rules: Sequence[Rule], now: datetime, default: str | None, override: Override | None, decided: Decision
) -> datetime | None:
    if override is not None and _in_force(override, now):  # its end is told even where the same plan goes on
        return override.ends_at
    moment = now
    for _ in range(_MOST_BOUNDARIES):
        left = now + _HORIZON - moment
        boundary = _next_boundary(rules, moment, override, left) if left > timedelta(0) else None
        if boundary is None:
            return None
        if _decide(rules, boundary, default, override).plan != decided.plan:
            return boundary
        moment = boundary
    return None


def _next_boundary(
    rules: Sequence[Rule], moment: datetime, override: Override | None, horizon: timedelta
) -> datetime | None:
    """The first instant after `moment` at which the decision may change."""
    edges: list[datetime] = []
    if override is not None:
        edges.extend(edge for edge in (override.starts_at, override.ends_at) if edge is not None and edge > moment)
        if override.ends_at is None and override.starts_at <= moment:
            return None
    for rule in rules:
        if not rule.enabled:
            continue
        starts = rule.starts
        following = starts.next_after(moment, horizon)
        if following is not None:
            edges.append(following)
        last = starts.last_at(moment, rule.duration)
        if last is not None:
            edges.append(last + rule.duration)
    return min((edge for edge in edges if edge <= moment + horizon), default=None)


def clashes(
    rule: Rule, others: Sequence[Rule], begin: datetime, horizon: timedelta = timedelta(days=370)
) -> str | None:
    """Why a rule and another would start different plans at one instant; None if they never do.

    Blocks: for rules that start each minute, up to a second.
    """
    mine = set(_some_starts(rule, begin, horizon))
    for other in others:
        if other.id == rule.id or not other.enabled or other.plan == rule.plan:
            continue
        for start in _some_starts(other, begin, horizon):
            if start in mine:
                local = start.astimezone(ZoneInfo(rule.timezone))
                return f"rule {other.name} starts plan {other.plan} at the same time, {local:%Y-%m-%d %H:%M %Z}"
    return None


def _some_starts(rule: Rule, begin: datetime, horizon: timedelta, most: int = 3000) -> list[datetime]:
    found = []
    for start in rule.starts.between(begin, begin + horizon):
        found.append(start)
        if len(found) >= most:
            break
    return found


def _spelled(duration: timedelta) -> str:
    minutes, seconds = divmod(int(duration.total_seconds()), 60)
    hours, minutes = divmod(minutes, 60)
    parts = [f"{hours} h" if hours else "", f"{minutes} min" if minutes else "", f"{seconds} s" if seconds else ""]
    return " ".join(part for part in parts if part)
