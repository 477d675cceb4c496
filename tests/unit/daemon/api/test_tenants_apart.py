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
