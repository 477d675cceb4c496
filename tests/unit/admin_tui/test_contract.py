"""The console and the daemon mean the same thing: answers, paths and the errors between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import httpx
import msgspec
import pytest
from fastapi import FastAPI
from pydantic import BaseModel, TypeAdapter

from admin_tui.client import AdminClient
from admin_tui.errors import Refused
from admin_tui.feed import ENDPOINTS
from daemon.api.admin.app import build_admin_app
from engine.errors import NotFound
from tests.fakes.admin_answers import Answers, empty, faulty, healthy, hostile

PREFIX = "/admin/v1/"
WRITES = {
    "workers/smollm2-0/restart": "smollm2-0",
    "workers/org/model%3Aq4/restart": "org/model:q4",
    "plans/day-32k/activate": "day-32k",
}


@pytest.fixture(scope="module")
def admin_app(tmp_path_factory: pytest.TempPathFactory) -> FastAPI:
    """The daemon's real routes; nothing is asked of its services."""
    settings = SimpleNamespace(state_dir=Path(tmp_path_factory.mktemp("state")))
    return build_admin_app(SimpleNamespace(settings=settings, store=None))  # type: ignore[arg-type]


def operations(app: FastAPI) -> dict[str, dict[str, Any]]:
    return {path.removeprefix(PREFIX): methods for path, methods in app.openapi()["paths"].items()}


def model_of(app: FastAPI, path: str) -> type[BaseModel]:
    """The pydantic model that the daemon answers with, found by the name its document gives it."""
    schema = operations(app)[path]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    name = schema["$ref"].rsplit("/", 1)[1]
    (found,) = {
        kind for kind in subclasses(BaseModel) if kind.__name__ == name and kind.__module__.startswith("daemon.api")
    }
    return found


def subclasses(kind: type) -> Iterator[type]:
    for below in kind.__subclasses__():
        yield below
        yield from subclasses(below)


@pytest.mark.parametrize("answers", [healthy, faulty, empty, hostile], ids=lambda a: a.__name__)
def test_fake_answers_are_what_the_daemon_may_say(admin_app: FastAPI, answers: Callable[[], Answers]) -> None:
    made = answers()
    for path in ENDPOINTS.values():
        path = path.split("?")[0]
        TypeAdapter(model_of(admin_app, path)).validate_python(made[path])


@pytest.mark.parametrize("kind", ENDPOINTS, ids=lambda kind: kind.__name__)
def test_console_reads_only_fields_that_the_daemon_sends(admin_app: FastAPI, kind: type[msgspec.Struct]) -> None:
    assert missing(kind, model_of(admin_app, ENDPOINTS[kind].split("?")[0])) == []


def missing(ours: type[msgspec.Struct], theirs: type[BaseModel]) -> list[str]:
    found = []
    for name, hint in get_type_hints(ours).items():
        if name not in theirs.model_fields:
            found.append(f"{ours.__name__}.{name}")
            continue
        inner, sent = part(hint, msgspec.Struct), part(theirs.model_fields[name].annotation, BaseModel)
        if inner is not None and sent is not None:
            found += missing(inner, sent)
    return found


def part(hint: Any, base: type) -> Any:
    """The class of that kind within a list or a union; None if there is none."""
    if isinstance(hint, type) and get_origin(hint) is None:
        return hint if issubclass(hint, base) else None
    if get_origin(hint) in (list, Union, UnionType):
        return next((found for found in (part(inner, base) for inner in get_args(hint)) if found), None)
    return None


@pytest.mark.parametrize(("path", "subject"), WRITES.items())
async def test_console_writes_reach_the_route_that_is_meant(admin_app: FastAPI, path: str, subject: str) -> None:
    """Each stops at the first service it asks, which says whom the request was about."""

    def unknown(name: str, *_: object) -> None:
        raise NotFound(f"asked for {name}")

    in_force = SimpleNamespace(plan="night", override=None, reason="")  # what a change notes as the state before it
    admin_app.state.services = SimpleNamespace(
        supervisor=SimpleNamespace(view=unknown),
        controller=SimpleNamespace(activate=unknown, view=lambda: in_force),
    )
    client = AdminClient(httpx.ASGITransport(admin_app, client=("uid:0", 1)), where="here")
    with pytest.raises(Refused) as caught:
        await client.post(path, {})
    assert caught.value.message == f"asked for {subject}"


def test_missing_when_a_field_is_unknown_names_it() -> None:
    class Inner(BaseModel):
        known: int

    class Sent(BaseModel):
        items: list[Inner]

    class Part(msgspec.Struct):
        known: int
        guessed: int | None = None

    class Read(msgspec.Struct):
        items: list[Part]

    hints = {"items": list[Part]}
    Read.__annotations__ = hints
    assert missing(Read, Sent) == ["Part.guessed"]
