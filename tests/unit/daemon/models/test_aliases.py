"""Aliases mean one model each, are followed by requests, and keep their model from being deleted."""

from __future__ import annotations

from pathlib import Path

import pytest

from daemon.events import EventLog
from daemon.models.aliases import Aliases
from daemon.models.registry import ModelRegistry
from daemon.router import Router
from daemon.store.session import Store
from daemon.tenants.admission import Admission
from daemon.tenants.limits import TenantLimits
from daemon.tenants.principal import Principal, Role
from engine.errors import Conflict, InvalidParameter, ModelNotFound, NotFound, PermissionDenied
from tests.fakes.fake_engine import FakeEngine
from tests.fakes.fake_services import add_replica
from tests.fakes.fake_text import ByteText


@pytest.fixture
def aliases(store: Store, events: EventLog, registry: ModelRegistry, tiny_gguf: Path) -> Aliases:
    registry.import_model(tiny_gguf, "one", link=True)
    registry.import_model(tiny_gguf, "two", link=True)
    return Aliases(store, events)


def test_alias_is_set_moved_and_removed(aliases: Aliases) -> None:
    assert aliases.set("chat", "one") is None
    assert aliases.set("chat", "two") == "one"
    assert (aliases.all(), aliases.of("two"), aliases.of("one")) == ({"chat": "two"}, ["chat"], [])
    assert aliases.remove("chat") == "two"
    with pytest.raises(NotFound):
        aliases.remove("chat")


def test_alias_that_deceives_or_leads_nowhere_is_refused(aliases: Aliases) -> None:
    with pytest.raises(Conflict, match="name of a model"):
        aliases.set("one", "two")
    with pytest.raises(ModelNotFound):
        aliases.set("chat", "three")
    with pytest.raises(InvalidParameter):
        aliases.set("../x", "one")


def test_name_that_is_an_alias_is_given_to_no_model(aliases: Aliases, registry: ModelRegistry, tiny_gguf: Path) -> None:
    aliases.set("chat", "one")
    with pytest.raises(Conflict, match="chat is an alias of one"):
        registry.import_model(tiny_gguf, "chat", link=True)
    with pytest.raises(Conflict, match="alias"):
        registry.import_model(tiny_gguf, "new", link=True, report=lambda progress: set_once(aliases, "new", "two"))
    assert registry.names() == ["one", "two"]


def set_once(aliases: Aliases, alias: str, model: str) -> None:
    """While an import reads its files."""
    if alias not in aliases.all():
        aliases.set(alias, model)


async def test_request_for_an_alias_finds_the_model_and_its_allow_list() -> None:
    router = Router(lambda path: ByteText())  # type: ignore[arg-type, return-value]
    add_replica(router, "one", FakeEngine())
    router.aliases = lambda: {"chat": "one", "old": "gone"}
    assert router.models() == ["chat", "one"]
    assert router.replica_for("chat").model == "one"
    door = Admission(10, lambda: 0)
    door.resolve = lambda model: router.aliases().get(model, model)
    one = Principal("t", "t", "k", "bk", Role.INFERENCE, TenantLimits(models=frozenset({"one"})))
    (await door.enter(one, "chat", 1)).release()
    with pytest.raises(PermissionDenied):
        await door.enter(one, "old", 1)
