"""Saved plans: which models are loaded together, each with its profile, under a name. Owner of table plans."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import msgspec
from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from daemon.events import EventLog
from daemon.planning.profile import Profile
from daemon.planning.strategy import Strategy
from daemon.store.base import utc_now
from daemon.store.schema import Plan, ScheduleOverride, ScheduleRule, Setting
from daemon.store.session import Store
from engine.errors import Conflict, InvalidParameter, NotFound, StoreError

AUTO = "auto"  # made at an import and kept up by later ones
OPERATOR = "operator"
DEFAULT_PLAN_KEY = "strategy.default_plan"
_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-_.")
_NAME_MAX = 64


@dataclass(frozen=True, slots=True)
class SavedPlan:
    name: str
    strategy: Strategy
    origin: str  # AUTO or OPERATOR
    profiles: tuple[Profile, ...]
    notes: str
    created_at: datetime
    updated_at: datetime

    def profile_of(self, model: str) -> Profile | None:
        return next((profile for profile in self.profiles if profile.model == model), None)

    @property
    def names(self) -> frozenset[str]:
        """All that clients can ask for: its models and their adapters."""
        return frozenset(name for p in self.profiles for name in (p.model, *(a.name for a in p.adapters)))

    def with_profile(self, profile: Profile) -> SavedPlan:
        """A copy with this model's profile added, or put in the place of its earlier one."""
        others = tuple(p for p in self.profiles if p.model != profile.model)
        return replace(self, profiles=(*others, profile))

    def without_model(self, model: str) -> SavedPlan:
        return replace(self, profiles=tuple(p for p in self.profiles if p.model != model))

    @property
    def memory_bytes(self) -> int:
        return sum(profile.memory.total_bytes for profile in self.profiles)


class Plans:
    """Blocks: every method waits for the store. Call from threads, never from the event loop."""

    def __init__(self, store: Store, events: EventLog) -> None:
        self._store = store
        self._events = events

    def all(self) -> Sequence[SavedPlan]:
        return self._store.read_sync(
            lambda session: [_saved(row) for row in session.scalars(select(Plan).order_by(Plan.created_at, Plan.name))]
        )

    def get(self, name: str) -> SavedPlan:
        """Raises: NotFound, naming the plans there are."""
        found = self._store.read_sync(lambda session: _find(session, name))
        if found is None:
            raise self._unknown(name)
        return found

    def origin_of(self, name: str) -> str | None:
        """AUTO or OPERATOR, even of a plan that this version cannot read; None: there is none."""
        return self._store.read_sync(lambda session: session.scalar(select(Plan.origin).where(Plan.name == name)))

    def save(self, plan: SavedPlan, reason: str) -> SavedPlan:
        """Write a plan under its name, in the place of an earlier one.

        Raises: InvalidParameter for a name that is none, or a plan without models.
        """
        check_name(plan.name)
        if not plan.profiles:
            raise InvalidParameter(f"plan {plan.name} has no models.", "Name at least one model.", param="models")

        def write(session: Session) -> tuple[SavedPlan, bool]:
            row: Plan | None = session.get(Plan, plan.name)
            now = utc_now()
            is_new = row is None
            if row is None:
                row = Plan(name=plan.name, created_at=now)
                session.add(row)
            row.strategy = plan.strategy.value
            row.origin = plan.origin
            row.profiles_json = json.dumps([profile.to_json() for profile in plan.profiles])
            row.notes = plan.notes
            row.updated_at = now
            session.flush()
            return _saved(row), is_new

        saved, is_new = self._store.write_sync(write)
        models = ", ".join(profile.model for profile in saved.profiles)
        self._events.publish(
            "plan",
            saved.name,
            None if is_new else "saved",
            "saved",
            f"{reason}; models: {models}",
            strategy=saved.strategy,
        )
        return saved

    def delete(self, name: str, even_default: bool = False) -> None:
        """even_default: the box is then left without a default plan.

        Raises: NotFound; Conflict while a rule, an override or the default names it.
        """

        def write(session: Session) -> tuple[str, str] | None:
            if session.get(Plan, name) is None:
                return "", ""
            rules = session.scalars(select(ScheduleRule.name).where(ScheduleRule.plan == name)).all()
            if rules:
                named = f"by schedule rule{'s' if len(rules) > 1 else ''} {', '.join(rules)}"
                return named, "`bayard schedule remove` or `change` those first."
            if even_default:
                session.execute(delete(ScheduleOverride).where(ScheduleOverride.plan == name))
                if _default(session) == name:
                    session.execute(delete(Setting).where(Setting.key == DEFAULT_PLAN_KEY))
            if session.scalars(select(ScheduleOverride.id).where(ScheduleOverride.plan == name)).first() is not None:
                return "by an operator's choice", "`bayard schedule release` ends it."
            if _default(session) == name:
                return "as the default", "`bayard plan activate` another plan first."
            session.execute(delete(Plan).where(Plan.name == name))
            return None

        held = self._store.write_sync(write)
        if held is not None:
            how, hint = held
            raise Conflict(f"plan {name} is used {how}.", hint) if how else self._unknown(name)
        self._events.publish("plan", name, "saved", "deleted", "deleted by an operator")

    def default(self) -> str | None:
        """The plan for when nothing else is in force; None before the first import."""
        return self._store.read_sync(_default)

    def set_default(self, name: str, by: str) -> None:
        """Raises: NotFound."""

        def write(session: Session) -> bool:
            if session.get(Plan, name) is None:
                return False
            row = session.get(Setting, DEFAULT_PLAN_KEY)
            if row is None:
                row = Setting(key=DEFAULT_PLAN_KEY)
                session.add(row)
            row.value_json = json.dumps(name)
            row.updated_at = utc_now()
            row.updated_by = by
            return True

        if not self._store.write_sync(write):
            raise self._unknown(name)

    def using(self, model: str) -> list[str]:
        """Names of the plans that load this model."""
        return [plan.name for plan in self.all() if model in plan.names]

    def _unknown(self, name: str) -> NotFound:
        names = [plan.name for plan in self.all()]
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"Did you mean {near[0]}?" if near else f"There are: {', '.join(names) or 'none yet'}."
        return NotFound(f"there is no plan {name[:_NAME_MAX]!r}.", hint, param="plan")


def check_name(name: str) -> None:
    """Raises: InvalidParameter."""
    if not name or len(name) > _NAME_MAX or not set(name) <= _NAME_CHARACTERS or not name[0].isalnum():
        raise InvalidParameter(
            f"{name[:_NAME_MAX]!r} is no name for a plan or rule.",
            f"Use up to {_NAME_MAX} of a-z, 0-9, '-', '_' and '.', beginning with a letter or digit.",
            param="name",
        )


def diff(old: SavedPlan, new: SavedPlan) -> list[tuple[str, str, str, str]]:
    """(model, what, old, new) for each difference that a switch would act on."""
    rows = []
    for model in sorted({p.model for p in old.profiles} | {p.model for p in new.profiles}):
        one, other = old.profile_of(model), new.profile_of(model)
        if one is None or other is None:
            rows.append((model, "loaded", "no" if one is None else "yes", "no" if other is None else "yes"))
            continue
        before, after = _switched_facts(one), _switched_facts(other)
        rows.extend((model, what, before[what], after[what]) for what in before if before[what] != after[what])
    return rows


def _switched_facts(profile: Profile) -> dict[str, str]:
    shape = ("device", "weights", "dtype", "kv_dtype", "threads", "path")
    facts = {name: str(getattr(profile, name)) for name in shape}
    facts |= {name: f"{getattr(profile, name):,}" for name in ("context_tokens", "kv_tokens")}
    facts |= {name: str(value) for name, value in msgspec.to_builtins(profile.knobs).items()}
    bounds = profile.bounds
    follows = "no" if bounds is None else f"{bounds.latency.max_running:,} to {bounds.throughput.max_running:,} streams"
    return facts | {"follows the load": follows}


def _find(session: Session, name: str) -> SavedPlan | None:
    row = session.get(Plan, name)
    return None if row is None else _saved(row)


def _default(session: Session) -> str | None:
    row = session.get(Setting, DEFAULT_PLAN_KEY)
    if row is None:
        return None
    value = json.loads(row.value_json)
    return value if isinstance(value, str) else None


def _saved(row: Plan) -> SavedPlan:
    try:
        profiles = tuple(Profile.from_json(item) for item in json.loads(row.profiles_json))
    except (msgspec.ValidationError, json.JSONDecodeError) as error:
        raise StoreError(
            f"plan {row.name} was saved by another version and cannot be read: {error}.",
            f"Make it again: `bayard plan save {row.name}`.",
        ) from error
    return SavedPlan(row.name, Strategy(row.strategy), row.origin, profiles, row.notes, row.created_at, row.updated_at)
