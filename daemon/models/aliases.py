"""Other names that models answer to, so that applications ask for a stable one. Owner of table model_aliases."""

from __future__ import annotations

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from daemon.events import EventLog
from daemon.models.naming import check_model_name
from daemon.store.base import utc_now
from daemon.store.schema import Model, ModelAlias
from daemon.store.session import Store
from engine.errors import Conflict, ModelNotFound, NotFound


class Aliases:
    """Blocks: every method waits for the store."""

    def __init__(self, store: Store, events: EventLog) -> None:
        self._store = store
        self._events = events

    def all(self) -> dict[str, str]:
        """Model by alias."""
        return self._store.read_sync(
            lambda session: {row.alias: row.model for row in session.scalars(select(ModelAlias))}
        )

    def set(self, alias: str, model: str) -> str | None:
        """Let the alias mean this model from now on; what it meant before.

        Raises: InvalidParameter; ModelNotFound; Conflict for the name of a model, which is no alias
        """
        check_model_name(alias)
        before = self._store.write_sync(lambda session: _set(session, alias, model))
        if before != model:
            self._events.publish("model", alias, before, model, "alias set")  # requests follow at once
        return before

    def remove(self, alias: str) -> str:
        """What it meant. Raises: NotFound"""
        before = self._store.write_sync(lambda session: _remove(session, alias))
        self._events.publish("model", alias, before, None, "alias removed")
        return before

    def of(self, model: str) -> list[str]:
        """Sorted."""
        return sorted(alias for alias, meant in self.all().items() if meant == model)


def _set(session: Session, alias: str, model: str) -> str | None:
    if session.scalars(select(Model).where(Model.name == alias)).first() is not None:
        raise Conflict(f"{alias} is the name of a model.", "Choose another alias.")
    if session.scalars(select(Model).where(Model.name == model)).first() is None:
        raise ModelNotFound(f"there is no model {model!r}.", "`bayard models list` shows those that are imported.")
    row = session.get(ModelAlias, alias)
    if row is None:
        session.add(ModelAlias(alias=alias, model=model, created_at=utc_now()))
        return None
    before, row.model = row.model, model
    return before


def _remove(session: Session, alias: str) -> str:
    row = session.get(ModelAlias, alias)
    if row is None:
        raise NotFound(f"there is no alias {alias!r}.", "`bayard models aliases` lists them.")
    model = row.model
    session.execute(delete(ModelAlias).where(ModelAlias.alias == alias))
    return model
