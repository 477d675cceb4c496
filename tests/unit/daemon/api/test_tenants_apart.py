"""Nothing that one tenant is answered, and nothing that its requests leave behind, shows that there is another."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
import structlog

from daemon.api.http import PublicApp
from daemon.api.routes import AuthRule
from daemon.tenants.limits import TenantLimits
from engine.errors import QueueFull
from tests.fakes.fake_services import MODEL, FakeServices

BODY = {"model": MODEL, "max_tokens": 4, "messages": [{"role": "user", "content": "the same words"}]}


async def marks_of(services: FakeServices, tenant: str) -> list[str]:
    """Everything that would give the tenant away."""
    found = await services.tenants.tenant(tenant)
    keys = await services.tenants.keys(found.id)
    return [found.name, found.id, *(key.id for key in keys), *(key.prefix for key in keys)]


@pytest.fixture
async def hidden(services: FakeServices, http: httpx.AsyncClient) -> list[str]:
    """Another tenant with limits, usage and a request that runs."""
    key = await services.new_key("rival-corporation", TenantLimits(requests_per_minute=50, tokens_per_day=10_000))
    other = {"authorization": f"Bearer {key}"}
    assert (await http.post("/v1/chat/completions", json=BODY, headers=other)).status_code == 200
    await services.tenants.usage.settle()
    return await marks_of(services, "rival-corporation")


async def test_no_answer_names_another_tenant(
    services: FakeServices, http: httpx.AsyncClient, hidden: list[str]
) -> None:
    for route in PublicApp(services).table.routes:
        if route.path == "/openapi.json":
            continue
        path = route.template.replace("{id}", "rival-corporation") if route.auth is AuthRule.KEY else route.path
        for body in (BODY, {}, {"model": "none"}):
            answer = await http.request(route.method, path, json=body)
            told = answer.text.replace(path, "") + json.dumps(dict(answer.headers))
            told = told.replace("'rival-corporation'", "")  # what was asked is echoed
            for mark in hidden:
                assert mark not in told, f"{route.method} {path}"


CHAT = {"messages": [{"role": "user", "content": "hi"}]}
ASKING = [
    ("/v1/chat/completions", CHAT),
    ("/v1/completions", {"prompt": "hi"}),
    ("/v1/responses", {"input": "hi"}),
    ("/v1/embeddings", {"input": "hi"}),
    ("/v1/rerank", {"query": "hi", "documents": ["hi"]}),
    ("/v1/messages", CHAT | {"max_tokens": 4}),
    ("/v1/messages/count_tokens", CHAT),
    ("/tokenize", {"prompt": "hi"}),
    ("/api/chat", CHAT),
    ("/api/generate", {"prompt": "hi"}),
    ("/api/embed", {"input": "hi"}),
    ("/api/show", {}),
]


@pytest.mark.parametrize(("path", "body"), ASKING)
async def test_key_for_one_model_hears_nothing_of_others_and_loads_none(
    services: FakeServices, http: httpx.AsyncClient, path: str, body: dict[str, Any]
) -> None:
    key = await services.new_key("acme", TenantLimits(models=frozenset({"its-own"})))
    asked: list[str] = []
    services.router.ask = lambda model: bool(asked.append(model))
    for model in (MODEL, "nowhere"):
        answer = await http.post(path, json=body | {"model": model}, headers={"authorization": f"Bearer {key}"})
        assert answer.status_code == 403, answer.text
        assert MODEL not in answer.text.replace(f"'{model}'", "")
    assert asked == []


@pytest.mark.parametrize(("path", "body"), ASKING)
async def test_unknown_model_is_told_without_those_there_are(
    http: httpx.AsyncClient, path: str, body: dict[str, Any]
) -> None:
    answer = await http.post(path, json=body | {"model": "nowhere"})
    assert answer.status_code == 404
    assert MODEL not in answer.text


async def test_alias_of_an_allowed_model_is_allowed_wherever_a_model_is_named(
    services: FakeServices, http: httpx.AsyncClient
) -> None:
    key = await services.new_key("acme", TenantLimits(models=frozenset({MODEL})))
    headers = {"authorization": f"Bearer {key}"}
    services.router.aliases = lambda: {"other-name": MODEL}
    services.tenants.admission.resolve = lambda model: services.router.aliases().get(model, model)
    listed = (await http.get("/v1/models", headers=headers)).json()["data"]
    assert {model["id"] for model in listed} == {MODEL, "other-name"}
    for path, body in (("/v1/chat/completions", CHAT), ("/tokenize", {"prompt": "hi"}), ("/api/show", {})):
        answer = await http.post(path, json=body | {"model": "other-name"}, headers=headers)
        assert answer.status_code == 200, answer.text


async def test_rates_and_quotas_of_one_do_not_move_with_the_other(
    services: FakeServices, http: httpx.AsyncClient, hidden: list[str]
) -> None:
    mine = await services.new_key("acme", TenantLimits(requests_per_minute=10, tokens_per_minute=10_000))
    headers = {"authorization": f"Bearer {mine}"}
    before = await http.get("/v1/models", headers=headers)
    for _ in range(3):
        assert (await http.post("/v1/chat/completions", json=BODY)).status_code == 200
    after = await http.get("/v1/models", headers=headers)
    for what in ("requests", "tokens"):
        name = f"x-ratelimit-remaining-{what}"
        assert int(after.headers[name]) == int(before.headers[name])


async def test_the_same_prompt_of_two_tenants_shares_no_cache(
    services: FakeServices, http: httpx.AsyncClient, hidden: list[str]
) -> None:
    for _ in range(2):
        await http.post("/v1/chat/completions", json=BODY)
    theirs, first, second = services.engine.submitted
    assert theirs.prompt_token_ids == first.prompt_token_ids
    assert theirs.cache_salt != first.cache_salt
    assert first.cache_salt == second.cache_salt != ""


async def test_full_queue_tells_the_limit_and_not_who_fills_it(services: FakeServices) -> None:
    admission = services.tenants.admission
    rival = services.tenants.identify(await services.new_key("rival", TenantLimits(max_concurrency=1)))
    admission.max_queue = 2
    await admission.enter(rival, MODEL, 1)
    waiting = [asyncio.create_task(admission.enter(rival, MODEL, 1)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(QueueFull) as caught:
        await admission.enter(services.tenants.identify(services.key), MODEL, 1)
    assert str(caught.value) == "queue_full: As many requests are waiting as may: 2. Try again shortly."
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_keys_that_never_were_and_keys_that_were_revoked_look_alike(
    services: FakeServices, http: httpx.AsyncClient
) -> None:
    gone = await services.new_key("gone")
    (record,) = await services.tenants.keys((await services.tenants.tenant("gone")).id)
    from tests.fakes.fake_services import TESTER

    await services.tenants.revoke_key(TESTER, record.id)
    answers: list[dict[str, Any]] = []
    for key in (gone, "bk_live_never"):
        answer = await http.get("/v1/models", headers={"authorization": f"Bearer {key}"})
        assert answer.status_code == 401
        answers.append(answer.json())
    assert answers[0] == answers[1]


async def test_log_of_a_request_names_its_own_tenant_alone(
    services: FakeServices, http: httpx.AsyncClient, hidden: list[str]
) -> None:
    services.engine.fail_after = 0
    with structlog.testing.capture_logs() as lines:
        await http.post("/v1/chat/completions", json=BODY)
    assert any(line["event"] == "request_failed" for line in lines)
    for line in lines:
        assert not any(mark in json.dumps(line, default=str) for mark in hidden)
        assert "the same words" not in json.dumps(line, default=str)
