"""Schedule rules and overrides as stored. Owner of tables schedule_rules and schedule_overrides."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from daemon.events import EventLog
from daemon.settings import Settings
from daemon.store.base import utc_now
from daemon.store.schema import Plan, ScheduleOverride, ScheduleRule
from daemon.store.session import Store
from daemon.strategy.plans import check_name
from daemon.strategy.schedule import Override, Rule, clashes
from engine.errors import Conflict, InvalidParameter, NotFound

_LONGEST_S = 7 * 86_400
_MOST_EXCEPTIONS = 400
_LONGEST_REASON = 500
_HORIZON = timedelta(days=5 * 366)  # a 29 February lies within


class Rules:
    """Blocks: every method waits for the store. Call from threads, never from the event loop."""

    def __init__(
        self, store: Store, events: EventLog, settings: Settings, clock: Callable[[], datetime] = utc_now
    ) -> None:
        self._store = store
        self._events = events
        self._clock = clock
        self.timezone = settings.schedule.timezone or local_timezone()

    def all(self) -> Sequence[Rule]:
        return self._store.read_sync(
            lambda session: [_rule(row) for row in session.scalars(select(ScheduleRule).order_by(ScheduleRule.id))]
        )

    def add(
        self,
        name: str,
        cron: str,
        duration_s: int,
        plan: str,
        timezone: str = "",
        except_dates: Sequence[date] = (),
    ) -> Rule:
        """Write one rule, checked against the others.

        Raises: InvalidParameter for a bad name, cron, duration or zone; NotFound for the plan; Conflict for a name that
        is taken or another plan's rule that starts at the same instant.
        """
        zone, cron = timezone or self.timezone, _in_one_line(cron)
        candidate = Rule(0, name, cron, duration_s, plan, zone, except_dates=_in_order(except_dates))
        self._check(candidate)

        def write(session: Session) -> Rule:
            if session.get(Plan, plan) is None:
                raise NotFound(f"there is no plan {plan[:64]!r}.", "`bayard plan list` names them.", param="plan")
            if session.scalars(select(ScheduleRule.id).where(ScheduleRule.name == name)).first() is not None:
                raise Conflict(f"there is a schedule rule {name} already.", f"`bayard schedule remove {name}` first.")
            others = [_rule(row) for row in session.scalars(select(ScheduleRule))]
            clash = clashes(candidate, others, self._clock())
            if clash is not None:
                raise Conflict(f"rule {name} is ambiguous: {clash}.", "Move one of the two starts.")
            row = ScheduleRule(
                name=name,
                cron=cron,
                duration_s=duration_s,
                plan=plan,
                timezone=zone,
                enabled=True,
                exceptions_json=_dates_json(candidate.except_dates),
                created_at=utc_now(),
            )
            session.add(row)
            session.flush()
            return _rule(row)

        rule = self._store.write_sync(write)
        self._events.publish("schedule", name, None, "added", f"plan {plan} at {cron} ({zone}) for {duration_s} s")
        return rule

    def candidate(
        self,
        name: str,
        cron: str,
        duration_s: int,
        plan: str,
        timezone: str,
        others: Sequence[Rule],
        except_dates: Sequence[date] = (),
    ) -> tuple[Rule, str | None]:
        """A rule that is not stored, and why it would be refused beside others. Raises: InvalidParameter"""
        zone, cron = timezone or self.timezone, _in_one_line(cron)
        rule = Rule(-1, name, cron, duration_s, plan, zone, except_dates=_in_order(except_dates))
        self._check(rule)
        return rule, clashes(rule, others, self._clock())

    def remove(self, name: str) -> None:
        """Raises: NotFound."""

        def write(session: Session) -> bool:
            found = session.scalars(select(ScheduleRule.id).where(ScheduleRule.name == name)).first()
            session.execute(delete(ScheduleRule).where(ScheduleRule.name == name))
            return found is not None

        if not self._store.write_sync(write):
            names = ", ".join(rule.name for rule in self.all()) or "none"
            raise NotFound(f"there is no schedule rule {name[:64]!r}.", f"There are: {names}.", param="name")
        self._events.publish("schedule", name, "added", "removed", "removed by an operator")

    def change(
        self,
        name: str,
        *,
        enabled: bool | None = None,
        cron: str | None = None,
        duration_s: int | None = None,
        plan: str | None = None,
        timezone: str | None = None,
        except_dates: Sequence[date] | None = None,
    ) -> Rule:
        """What is named changes, checked as a new rule is; None leaves it. An empty timezone is the setting's.

        Raises: NotFound; InvalidParameter, Conflict as add
        """

        asked: dict[str, Any] = {
            "enabled": enabled,
            "cron": None if cron is None else _in_one_line(cron),
            "duration_s": duration_s,
            "plan": plan,
            "timezone": None if timezone is None else timezone or self.timezone,
            "except_dates": None if except_dates is None else _in_order(except_dates),
        }

        def write(session: Session) -> Rule:
            row = session.scalars(select(ScheduleRule).where(ScheduleRule.name == name)).first()
            if row is None:
                raise NotFound(
                    f"there is no schedule rule {name[:64]!r}.", "`bayard schedule list` names them.", param="name"
                )
            changed = replace(_rule(row), **{key: value for key, value in asked.items() if value is not None})
            if session.get(Plan, changed.plan) is None:
                raise NotFound(
                    f"there is no plan {changed.plan[:64]!r}.", "`bayard plan list` names them.", param="plan"
                )
            self._check(changed)
            others = [_rule(other) for other in session.scalars(select(ScheduleRule))]
            if changed.enabled and (clash := clashes(changed, others, self._clock())) is not None:
                raise Conflict(f"rule {name} is ambiguous: {clash}.", "Move one of the two starts.")
            row.enabled, row.cron, row.duration_s = changed.enabled, changed.cron, changed.duration_s
            row.plan, row.timezone = changed.plan, changed.timezone
            row.exceptions_json = _dates_json(changed.except_dates)
            session.flush()
            return changed

        rule = self._store.write_sync(write)
        told = f"plan {rule.plan} at {rule.cron} ({rule.timezone}) for {rule.duration_s} s, by an operator"
        self._events.publish("schedule", name, None, "enabled" if rule.enabled else "disabled", told)
        return rule

    def override(self) -> Override | None:
        """The newest override that has not ended."""
        now = self._clock()

        def read(session: Session) -> Override | None:
            rows = session.scalars(select(ScheduleOverride).order_by(ScheduleOverride.id.desc()))
            row = next((row for row in rows if row.ends_at is None or row.ends_at > now), None)
            return None if row is None else Override(row.plan, row.starts_at, row.ends_at, row.reason, row.created_by)

        return self._store.read_sync(read)

    def set_override(self, plan: str, for_s: float | None, reason: str, by: str) -> Override:
        """Put a plan above the rules, for a time or until released; an earlier override ends.

        Raises: NotFound for the plan; InvalidParameter for a duration that is none, or a reason that fills the log.
        """
        if for_s is not None and not 0 < for_s <= 366 * 86_400:
            raise InvalidParameter(f"a duration of {for_s:,.0f} s is not between 1 s and a year.", "", param="for")
        if len(reason) > _LONGEST_REASON:
            raise InvalidParameter(
                f"the reason has {len(reason):,} characters; it may have {_LONGEST_REASON}.", "", param="reason"
            )
        now = self._clock()
        override = Override(plan, now, None if for_s is None else now + timedelta(seconds=for_s), reason, by)

        def write(session: Session) -> None:
            if session.get(Plan, plan) is None:
                raise NotFound(f"there is no plan {plan[:64]!r}.", "`bayard plan list` names them.", param="plan")
            session.execute(delete(ScheduleOverride))
            session.add(
                ScheduleOverride(
                    plan=plan,
                    starts_at=override.starts_at,
                    ends_at=override.ends_at,
                    reason=reason,
                    created_by=by,
                    created_at=now,
                )
            )

        self._store.write_sync(write)
        until = "until released" if override.ends_at is None else f"until {override.ends_at:%Y-%m-%d %H:%M} UTC"
        self._events.publish(
            "schedule", plan, None, "override", f"{until}, by {by}" + (f": {reason}" if reason else "")
        )
        return override

    def release(self, by: str) -> bool:
        """End any override; True if there was one."""

        def write(session: Session) -> bool:
            found = session.scalars(select(ScheduleOverride.id)).first() is not None
            session.execute(delete(ScheduleOverride))
            return found

        found = self._store.write_sync(write)
        if found:
            self._events.publish("schedule", "override", "override", "released", f"by {by}")
        return found

    def _check(self, rule: Rule) -> None:
        check_name(rule.name)
        if not 60 <= rule.duration_s <= _LONGEST_S:
            raise InvalidParameter(
                f"a duration of {rule.duration_s:,} s was asked for; a rule lasts between 60 and {_LONGEST_S:,} s.",
                "For longer, make it the default plan: `bayard plan activate`.",
                param="duration",
            )
        try:
            ZoneInfo(rule.timezone)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise InvalidParameter(
                f"there is no time zone {rule.timezone[:64]!r}.",
                "Use an IANA name such as Europe/Berlin.",
                param="timezone",
            ) from error
        if len(rule.except_dates) > _MOST_EXCEPTIONS:
            raise InvalidParameter(
                f"{len(rule.except_dates):,} dates are excepted; a rule may have {_MOST_EXCEPTIONS:,}.",
                "Leave out those that are past.",
                param="except_dates",
            )
        if rule.starts.next_after(self._clock(), _HORIZON) is None:
            raise InvalidParameter(
                f"rule {rule.name} ({rule.cron}) never starts in the next five years.",
                "Check its fields.",
                param="cron",
            )


def local_timezone() -> str:
    """The machine's own IANA zone; UTC where it has none that is known."""
    import tzlocal

    try:
        name = tzlocal.get_localzone_name()
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return "UTC"
    return str(name)


def _rule(row: ScheduleRule) -> Rule:
    except_dates = tuple(date.fromisoformat(day) for day in json.loads(row.exceptions_json))
    zone = row.timezone or "UTC"
    return Rule(row.id, row.name, row.cron, row.duration_s, row.plan, zone, row.enabled, except_dates)


def _in_one_line(cron: str) -> str:
    return " ".join(cron.split())


def _in_order(dates: Sequence[date]) -> tuple[date, ...]:
    return tuple(sorted(set(dates)))


def _dates_json(dates: Sequence[date]) -> str:
    return json.dumps([day.isoformat() for day in dates])
