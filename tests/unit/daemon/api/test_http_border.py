"""The HTTP border: every refusal is an OpenAI error object with the right status, and nothing of the inside leaves."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import openai
import pytest
import structlog

from daemon.api.exchange import duration
from daemon.api.http import PublicApp, build_app
from daemon.api.routes import AuthRule
from daemon.tenants.brake import Brake
from daemon.tenants.limits import TenantLimits
from daemon.tenants.principal import Role
from engine.errors import BayardError, all_error_types
from tests.fakes.fake_services import MODEL, TESTER, FakeServices, fake_services, http_server

CHAT = "/v1/chat/completions"
JSON = {"content-type": "application/json"}
GOOD = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}


def error_of(response: httpx.Response) -> dict[str, Any]:
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert response.headers["x-request-id"].startswith("req_")
    return error


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b'{"model": "x", "messages": [', "ends too early"),
        (b"", "ends too early"),
        (b"[]", "expected object"),
        (b'{"temperature": NaN}', "not valid JSON"),
        (b'{"temperature": Infinity}', "not valid JSON"),
        (b'{"temperature": 1e999, "model": "x", "messages": []}', "out of range"),
        (b'{"model": "x", "messages": [{"role": "user", "content": ""}]} trailing', "trailing"),
        (b'\xef\xbb\xbf{"model": "x"}', "not valid JSON"),
        (b'{"model": "\xff\xfe"}', "UTF-8"),
        (b'{"user": "\xff"}', "UTF-8"),
        (b'{"model": "\\ud800"}', "surrogate"),
        (b'{"model": "a", "model": "b"}', "twice"),
        (b'{"user": ' + b"[" * 65 + b"]" * 65 + b"}", "nested"),
        (b'{"user": ' + b"[" * 100_000, "nested"),
        (b'{"user": [' + b"[]," * 300_000 + b"[]]}", "brackets"),
    ],
)
async def test_bad_json_is_refused_with_its_reason(http: httpx.AsyncClient, body: bytes, says: str) -> None:
    response = await http.post(CHAT, content=body, headers=JSON)
    assert response.status_code == 400
    assert says in error_of(response)["message"]


async def test_nul_and_deep_but_allowed_json_is_text(http: httpx.AsyncClient, services: FakeServices) -> None:
    body = {**GOOD, "messages": [{"role": "user", "content": "a\0b"}], "metadata": [[[[[[{"a": [1]}]]]]]]}
    assert (await http.post(CHAT, json=body)).status_code == 200
    assert b"a\0b" in bytes(services.engine.submitted[0].prompt_token_ids)


async def test_body_must_be_json(http: httpx.AsyncClient) -> None:
    for kind in ("text/plain", "multipart/form-data", ""):
        response = await http.post(CHAT, content=b"{}", headers={"content-type": kind})
        assert response.status_code == 415
        assert error_of(response)["code"] == "unsupported_media_type"


@pytest.mark.parametrize("chunked", [False, True])
async def test_body_above_the_limit_is_refused(tmp_path: Any, chunked: bool) -> None:
    async with fake_services(tmp_path, max_body_bytes=2048) as services, http_server(PublicApp(services)) as url:
        headers = {"authorization": f"Bearer {services.key}", **JSON}

        async def pieces() -> Any:
            for _ in range(10):
                yield b" " * 1024

        async with httpx.AsyncClient(base_url=url, headers=headers, trust_env=False) as http:
            content = pieces() if chunked else b" " * 10_240
            response = await http.post(CHAT, content=content)
            assert response.status_code == 413
            assert error_of(response)["code"] == "body_too_large"
            assert (await http.post(CHAT, json=GOOD)).status_code == 200


async def test_unknown_route_and_wrong_method(http: httpx.AsyncClient) -> None:
    response = await http.get("/v1/nothing")
    assert response.status_code == 404
    assert error_of(response)["code"] == "not_found"
    for method, path, allowed in (
        ("GET", CHAT, "POST"),
        ("DELETE", "/v1/models", "GET, HEAD"),
        ("TRACE", "/healthz", "GET, HEAD"),
    ):
        response = await http.request(method, path)
        assert response.status_code == 405
        assert response.headers["allow"] == allowed
        assert error_of(response)["code"] == "method_not_allowed"


async def test_head_has_headers_and_no_body(http: httpx.AsyncClient) -> None:
    response = await http.head("/v1/models")
    assert response.status_code == 200
    assert response.content == b""


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer bk_live_wrong"},
        {"authorization": "Bearer"},
        {"authorization": "Basic abc"},
        {"x-api-key": "\xff\xfe"},
        {"x-api-key": "x" * 5000},
    ],
)
async def test_without_a_good_key_every_keyed_route_is_closed(
    base_url: str, services: FakeServices, headers: dict[str, str]
) -> None:
    app = PublicApp(services)
    raw = {key: value.encode("latin-1") for key, value in headers.items()}
    async with httpx.AsyncClient(base_url=base_url, trust_env=False) as http:
        for route in app.table.routes:
            services.tenants.brake = Brake()  # which is about guesses, not about routes
            response = await http.request(route.method, route.template, headers=raw)
            if route.auth is AuthRule.KEY:
                assert response.status_code == 401, route
                assert response.headers["www-authenticate"] == "Bearer"
                assert "key" in response.text  # in whatever shape the route's contract has
            else:
                assert response.status_code in (200, 503), route


def test_open_routes_are_these_and_no_others(services: FakeServices) -> None:
    opened = {route.path for route in PublicApp(services).table.routes if route.auth is AuthRule.OPEN}
    assert opened == {"/healthz", "/readyz", "/openapi.json"}


async def test_before_any_key_the_refusal_says_how_to_make_one(base_url: str, services: FakeServices) -> None:
    async with httpx.AsyncClient(base_url=base_url, trust_env=False) as http:
        for key in await services.tenants.keys():
            await services.tenants.revoke_key(TESTER, key.id)
        response = await http.get("/v1/models", headers={"x-api-key": services.key})
        assert response.status_code == 401
        services.tenants._principals.clear()
        assert "bayard keys create --tenant demo" in error_of(await http.get("/v1/models"))["message"]


async def test_key_may_come_either_way_and_admins_may_generate(base_url: str, services: FakeServices) -> None:
    admin = await services.new_key("ops", role=Role.ADMIN)
    async with httpx.AsyncClient(base_url=base_url, trust_env=False) as http:
        for headers in ({"x-api-key": services.key}, {"authorization": f"bearer {services.key}"}, {"x-api-key": admin}):
            assert (await http.post(CHAT, json=GOOD, headers=headers)).status_code == 200


async def test_model_that_the_key_may_not_use_is_forbidden_and_unlisted(base_url: str, services: FakeServices) -> None:
    key = await services.new_key("narrow", TenantLimits(models=frozenset({"other"})))
    async with httpx.AsyncClient(base_url=base_url, headers={"x-api-key": key}, trust_env=False) as http:
        response = await http.post(CHAT, json=GOOD)
        assert response.status_code == 403
        assert error_of(response)["param"] == "model"
        assert (await http.get("/v1/models")).json()["data"] == []
        assert (await http.get(f"/v1/models/{MODEL}")).status_code == 404


@pytest.mark.parametrize("name", ["../../etc/passwd", "..%2F..%2Fetc", "org%2Ftiny%3A1%00", "%00", "org/tiny:1/"])
async def test_model_names_are_looked_up_and_never_a_path(http: httpx.AsyncClient, name: str) -> None:
    response = await http.get(f"/v1/models/{name}")
    assert response.status_code == 404
    error_of(response)


@pytest.mark.parametrize("kind", all_error_types(), ids=lambda kind: kind.__name__)
async def test_every_error_of_the_tree_keeps_its_status_and_code(
    http: httpx.AsyncClient, services: FakeServices, monkeypatch: pytest.MonkeyPatch, kind: type[BayardError]
) -> None:
    def refuse(model: str) -> None:
        raise kind("It happened.", "Do this.", retry_after_s=0.25)

    monkeypatch.setattr(services.router, "replica_for", refuse)
    response = await http.post(CHAT, json=GOOD)
    assert response.status_code == kind.http_status
    error = error_of(response)
    assert (error["code"], error["message"]) == (kind.code, "It happened. Do this.")
    if kind.http_status in (429, 503):
        assert response.headers["retry-after"] == "1"
        assert response.headers["retry-after-ms"] == "250"


async def test_foreign_exception_shows_nothing_and_the_next_request_is_served(
    http: httpx.AsyncClient, services: FakeServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_down(model: str) -> None:
        raise RuntimeError("secret inside")

    with (
        monkeypatch.context() as patched,
        structlog.testing.capture_logs(processors=[structlog.contextvars.merge_contextvars]) as logged,
    ):
        patched.setattr(services.router, "replica_for", break_down)
        response = await http.post(CHAT, json=GOOD)
    (broke,) = [line for line in logged if line["event"] == "request_broke"]
    assert broke["request_id"] == response.headers["x-request-id"]
    assert broke["tenant"] == "demo"
    assert response.status_code == 500
    assert error_of(response)["code"] == "internal_error"
    assert "secret" not in response.text
    assert (await http.post(CHAT, json=GOOD)).status_code == 200
    assert not len(services.serving.live)


async def test_client_retries_a_quota_and_succeeds_when_it_refills(base_url: str, services: FakeServices) -> None:
    key = await services.new_key("slow", TenantLimits(requests_per_minute=60))
    async with openai.AsyncOpenAI(base_url=base_url + "/v1", api_key=key, max_retries=2) as client:
        first = await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "hi"}])
        drain_bucket(services)
        second = await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "hi"}])
    assert first.choices[0].message.content == second.choices[0].message.content
    metrics = services.metrics.render().decode()
    assert 'bayard_http_responses_total{route="/v1/chat/completions",status="429"}' in metrics


def drain_bucket(services: FakeServices) -> None:
    """As if the tenant had just used its minute up: the next request may come in about a second."""
    for load in services.tenants.admission._loads.values():
        if load.requests is not None:
            load.requests.take(load.requests.per_minute - 1)


async def test_quota_refusal_tells_when_to_come_back(base_url: str, services: FakeServices) -> None:
    key = await services.new_key("slow", TenantLimits(requests_per_minute=1))
    async with httpx.AsyncClient(base_url=base_url, headers={"x-api-key": key}, trust_env=False) as http:
        assert (await http.post(CHAT, json=GOOD)).status_code == 200
        response = await http.post(CHAT, json=GOOD)
    assert response.status_code == 429
    assert error_of(response)["code"] == "quota_exceeded"
    assert 50 < int(response.headers["retry-after"]) <= 60


async def test_rates_are_told_in_headers_where_there_are_any(base_url: str, services: FakeServices) -> None:
    key = await services.new_key("rated", TenantLimits(requests_per_minute=10, tokens_per_minute=10_000))
    async with httpx.AsyncClient(base_url=base_url, trust_env=False) as http:
        for stream in (False, True):
            response = await http.post(CHAT, json={**GOOD, "stream": stream}, headers={"x-api-key": key})
        assert response.headers["x-ratelimit-limit-requests"] == "10"
        assert response.headers["x-ratelimit-remaining-requests"] == "8"
        assert response.headers["x-ratelimit-reset-requests"] == "12s"
        assert int(response.headers["x-ratelimit-remaining-tokens"]) < 10_000
        free = await http.post(CHAT, json=GOOD, headers={"x-api-key": services.key})
    assert not [name for name in free.headers if name.startswith("x-ratelimit")]
    assert [duration(value) for value in (0.0123, 3.2, 360.0)] == ["12ms", "3s", "6m0s"]


async def test_metrics_count_requests_by_model_and_route(http: httpx.AsyncClient) -> None:
    await http.post(CHAT, json=GOOD)
    await http.post(CHAT, json={**GOOD, "model": "free text of a client"})
    text = (await http.get("/metrics")).text
    assert f'bayard_requests_total{{model="{MODEL}",outcome="stop"}} 1.0' in text
    assert 'bayard_requests_total{model="unknown",outcome="model_not_found"} 1.0' in text
    assert "free text" not in text


async def test_web_pages_of_named_origins_alone_may_call(services: FakeServices) -> None:
    page, asked = {"origin": "https://app.example"}, {"access-control-request-method": "POST"}
    http_settings = services.settings.http.model_copy(update={"cors_origins": "https://app.example http://b"})
    services.settings = services.settings.model_copy(update={"http": http_settings})
    transport = httpx.ASGITransport(build_app(services))
    async with httpx.AsyncClient(transport=transport, base_url="http://bayard") as http:
        wanted = {"access-control-request-headers": "authorization, content-type"}
        question = await http.options("/v1/chat/completions", headers=page | asked | wanted)
        assert question.status_code == 200
        assert question.headers["access-control-allow-origin"] == "https://app.example"
        assert question.headers["access-control-allow-methods"] == "POST"
        assert question.headers["access-control-allow-headers"] == "authorization, content-type"
        refused = await http.post("/v1/chat/completions", headers=page)
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == "https://app.example"
        other = await http.options("/v1/chat/completions", headers=asked | {"origin": "https://evil.example"})
        assert other.status_code == 405
        assert "access-control-allow-origin" not in other.headers
        assert (await http.options("/none", headers=page | asked)).status_code == 404


async def test_without_named_origins_there_is_no_cors(http: httpx.AsyncClient) -> None:
    page = {"origin": "https://app.example", "access-control-request-method": "POST"}
    response = await http.options("/v1/chat/completions", headers=page)
    assert response.status_code == 405
    assert not [name for name in response.headers if name.startswith("access-control")]


async def test_body_that_trickles_is_given_up(services: FakeServices, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("daemon.api.exchange.BODY_CHUNK_TIMEOUT_S", 0.3)
    async with http_server(build_app(services)) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-Api-Key: {services.key}\r\n"
        writer.write(head.encode() + b"Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n")

        async def trickle() -> None:
            while True:
                writer.write(b" ")
                await asyncio.sleep(0.05)

        trickling = asyncio.create_task(trickle())
        async with asyncio.timeout(3.0):
            answer = await reader.readuntil(b"too slow")
        trickling.cancel()
        writer.close()
        assert answer.startswith(b"HTTP/1.1 400")


async def test_encoded_body_is_415(http: httpx.AsyncClient) -> None:
    headers = JSON | {"content-encoding": "gzip"}
    response = await http.post(CHAT, content=b"\x1f\x8b", headers=headers)
    assert response.status_code == 415
    assert "gzip" in error_of(response)["message"]
