"""Every route and RPC that needs a key is under its tenant's limits, its role, and the brake on guesses."""

from __future__ import annotations

import importlib
import pkgutil

import grpc
import httpx
import pytest

from daemon.api.grpc import gen
from daemon.api.grpc.guard import needs_key
from daemon.api.grpc.server import build_server
from daemon.api.http import PublicApp
from daemon.api.routes import AuthRule
from daemon.tenants.brake import FREE_FAILURES, Brake
from daemon.tenants.limits import TenantLimits
from daemon.tenants.principal import Role
from tests.fakes.fake_services import MODEL, TESTER, FakeServices, add_replica


def methods() -> list[tuple[str, bool]]:
    """Every RPC of every service that is defined here, and whether its answer streams."""
    found = []
    for module in pkgutil.iter_modules(gen.__path__):
        if module.name.endswith("_pb2"):
            described = importlib.import_module(f"{gen.__name__}.{module.name}").DESCRIPTOR
            for service in described.services_by_name.values():
                found += [
                    (f"/{service.full_name}/{method.name}", method.server_streaming) for method in service.methods
                ]
    return found


async def spent_key(services: FakeServices) -> str:
    """A key whose tenant has used its one request of this minute."""
    key = await services.new_key("spent", TenantLimits(requests_per_minute=1))
    ticket = await services.tenants.admission.enter(services.tenants.identify(key), "m", 1)
    ticket.release()
    return key


async def test_every_keyed_route_is_under_the_rate(services: FakeServices, base_url: str) -> None:
    headers = {"authorization": f"Bearer {await spent_key(services)}"}
    walked = 0
    async with httpx.AsyncClient(base_url=base_url, headers=headers, trust_env=False) as client:
        for route in PublicApp(services).table.routes:
            if route.auth is not AuthRule.KEY:
                continue
            answer = await client.request(route.method, route.template.replace("{id}", "x"), json={})
            assert answer.status_code == 429, f"{route.method} {route.path}: {answer.status_code}"
            assert answer.headers["x-ratelimit-remaining-requests"] == "0"
            assert float(answer.headers["retry-after"]) > 0
            walked += 1
    assert walked > 3


async def test_every_keyed_rpc_is_under_the_rate(services: FakeServices) -> None:
    key = await spent_key(services)
    server = build_server(services)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    walked = 0
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            for method, streams in methods():
                if not needs_key(method):
                    continue
                services.tenants.brake = Brake()  # which is about guesses, not about methods
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await _called(channel, method, streams, key)
                assert caught.value.code() in (
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    grpc.StatusCode.UNIMPLEMENTED,
                ), method
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await _called(channel, method, streams, "bk_live_wrong")
                assert caught.value.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNIMPLEMENTED), method
                walked += 1
    finally:
        await server.stop(0)
    assert walked > 1


async def _called(channel: grpc.aio.Channel, method: str, streams: bool, key: str) -> None:
    metadata = (("authorization", f"Bearer {key}"),)
    if streams:
        async for _ in channel.unary_stream(method)(b"", metadata=metadata, timeout=5):
            pass
    else:
        await channel.unary_unary(method)(b"", metadata=metadata, timeout=5)


@pytest.mark.parametrize(("role", "allowed"), [(Role.METRICS, False), (Role.OPERATOR, False), (Role.ADMIN, True)])
async def test_only_roles_that_generate_reach_inference(
    services: FakeServices, base_url: str, role: Role, allowed: bool
) -> None:
    key = await services.new_key("other", role=role)
    async with httpx.AsyncClient(base_url=base_url, trust_env=False) as client:
        answer = await client.get("/v1/models", headers={"authorization": f"Bearer {key}"})
    assert answer.status_code == (200 if allowed else 403)


@pytest.mark.parametrize("role", list(Role))
async def test_metrics_ask_for_a_key_where_the_setting_says_so(
    services: FakeServices, base_url: str, role: Role
) -> None:
    key = await services.new_key("scraper", role=role)
    async with httpx.AsyncClient(base_url=base_url, trust_env=False) as client:
        assert (await client.get("/metrics")).status_code == 200
        http = services.settings.http.model_copy(update={"metrics_key": True})
        services.settings = services.settings.model_copy(update={"http": http})
        assert (await client.get("/metrics")).status_code == 401
        answer = await client.get("/metrics", headers={"authorization": f"Bearer {key}"})
    assert answer.status_code == (403 if role is Role.INFERENCE else 200)


async def test_guesses_are_slowed_and_the_key_in_use_is_not(services: FakeServices, http: httpx.AsyncClient) -> None:
    assert (await http.get("/v1/models")).status_code == 200
    for _ in range(FREE_FAILURES):
        assert (await http.get("/v1/models", headers={"authorization": "Bearer guess"})).status_code == 401
    slowed = await http.get("/v1/models", headers={"authorization": "Bearer guess"})
    assert (slowed.status_code, slowed.json()["error"]["code"]) == (429, "too_many_attempts")
    assert (await http.get("/v1/models")).status_code == 200


async def test_guesses_over_grpc_are_slowed_too(services: FakeServices) -> None:
    server = build_server(services)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    codes = []
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            for _ in range(FREE_FAILURES + 1):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await _called(channel, "/bayard.v1.Inference/ListModels", False, "bk_live_guess")
                codes.append(caught.value.code())
    finally:
        await server.stop(0)
    assert set(codes[:-1]) == {grpc.StatusCode.UNAUTHENTICATED}
    assert codes[-1] is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "127.0.0.1" in services.tenants.brake._failed


async def test_priority_and_share_reach_the_engine(services: FakeServices, base_url: str) -> None:
    key = await services.new_key("gold", TenantLimits(share=2.5))
    tenant = await services.tenants.tenant("gold")
    await services.tenants.set_limits(TESTER, "gold", TenantLimits(share=2.5), priority=-3)
    add_replica(services.router, "org/encoder", services.engine, dimensions=4)
    async with httpx.AsyncClient(base_url=base_url, headers={"authorization": f"Bearer {key}"}) as client:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
        assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
        asked = await client.post("/v1/embeddings", json={"model": "org/encoder", "input": "hi"})
        assert asked.status_code == 200
    for sent in (services.engine.submitted[-1], services.engine.embedded[-1]):
        assert (sent.tenant, sent.priority, sent.weight) == (tenant.id, -3, 2.5)
