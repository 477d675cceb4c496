"""bayard.v1.Inference over a real channel: the same answers as HTTP, statuses for errors, aborts that abort."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import httpx
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from daemon.api.grpc.gen import bayard_pb2 as pb
from daemon.api.grpc.gen import bayard_pb2_grpc as stubs
from daemon.api.grpc.generate import HERE, generate
from daemon.api.grpc.server import INFERENCE, build_server
from daemon.tenants.limits import TenantLimits
from tests.fakes.fake_services import MODEL, FakeServices


@pytest.fixture
async def channel(services: FakeServices) -> AsyncIterator[aio.Channel]:
    server = build_server(services)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with aio.insecure_channel(f"127.0.0.1:{port}") as made:
        yield made
    await server.stop(None)


def hi(**fields: object) -> pb.ChatRequest:
    return pb.ChatRequest(model=MODEL, messages=[pb.Message(role="user", content="hi")], **fields)  # type: ignore[arg-type]


def bearer(key: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {key}"),)


async def test_chat_streams_text_then_reason_then_usage(channel: aio.Channel, services: FakeServices) -> None:
    stub = stubs.InferenceStub(channel)
    deltas = [delta async for delta in stub.Chat(hi(), metadata=bearer(services.key))]
    assert "".join(delta.text for delta in deltas) == "Hello there, Paris!"
    assert [delta.finish_reason for delta in deltas if delta.finish_reason] == ["stop"]
    assert [delta.HasField("finished") for delta in deltas] == [False] * (len(deltas) - 1) + [True]
    assert deltas[-1].finished.completion_tokens == 19
    assert len({(delta.id, delta.created, delta.model) for delta in deltas}) == 1


async def test_chat_submits_the_same_tokens_and_sampling_as_http(
    channel: aio.Channel, services: FakeServices, http: httpx.AsyncClient
) -> None:
    fields = {"temperature": 0.5, "top_p": 0.9, "seed": 7, "max_tokens": 4, "stop": ["zz"], "logit_bias": {65: 2.0}}
    async for _ in stubs.InferenceStub(channel).Chat(hi(**fields), metadata=bearer(services.key)):
        pass
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], **fields}
    assert (await http.post("/v1/chat/completions", json={**body, "logit_bias": {"65": 2.0}})).status_code == 200
    one, other = services.engine.submitted
    assert one.prompt_token_ids == other.prompt_token_ids
    assert one.sampling == other.sampling
    assert one.cache_salt == other.cache_salt


@pytest.mark.parametrize(
    ("fields", "key", "code", "bayard_code"),
    [
        ({"temperature": 2.5}, None, grpc.StatusCode.INVALID_ARGUMENT, "invalid_parameter"),
        ({"stop": list("abcde")}, None, grpc.StatusCode.INVALID_ARGUMENT, "invalid_parameter"),
        ({"max_tokens": 100_000}, None, grpc.StatusCode.INVALID_ARGUMENT, "context_length_exceeded"),
        ({}, "bk_live_wrong", grpc.StatusCode.UNAUTHENTICATED, "invalid_api_key"),
    ],
)
async def test_chat_refusals_are_statuses_with_details(
    channel: aio.Channel,
    services: FakeServices,
    fields: dict[str, object],
    key: str | None,
    code: grpc.StatusCode,
    bayard_code: str,
) -> None:
    with pytest.raises(aio.AioRpcError) as caught:
        async for _ in stubs.InferenceStub(channel).Chat(hi(**fields), metadata=bearer(key or services.key)):
            pass
    assert caught.value.code() is code
    assert dict(caught.value.trailing_metadata() or ())["bayard-code"] == bayard_code


async def test_chat_unknown_model_is_not_found(channel: aio.Channel, services: FakeServices) -> None:
    request = hi()
    request.model = "absent"
    with pytest.raises(aio.AioRpcError) as caught:
        async for _ in stubs.InferenceStub(channel).Chat(request, metadata=bearer(services.key)):
            pass
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_chat_engine_failure_mid_stream_is_the_status(channel: aio.Channel, services: FakeServices) -> None:
    services.engine.fail_after = 3
    texts = []

    async def read() -> None:
        async for delta in stubs.InferenceStub(channel).Chat(hi(), metadata=bearer(services.key)):
            texts.append(delta.text)

    with pytest.raises(aio.AioRpcError) as caught:
        await read()
    assert "".join(texts) == "Hel"
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_chat_deadline_aborts_in_the_engine(channel: aio.Channel, services: FakeServices) -> None:
    services.engine.hold = asyncio.Event()
    with pytest.raises(aio.AioRpcError) as caught:
        async for _ in stubs.InferenceStub(channel).Chat(hi(), metadata=bearer(services.key), timeout=0.3):
            pass
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await services.freed()


async def test_chat_cancel_aborts_in_the_engine(channel: aio.Channel, services: FakeServices) -> None:
    services.engine.token_s = 0.02
    call = stubs.InferenceStub(channel).Chat(hi(ignore_eos=True), metadata=bearer(services.key))
    async for _ in call:
        break
    call.cancel()
    await services.freed()


async def test_list_models_shows_what_the_key_may_use(channel: aio.Channel, services: FakeServices) -> None:
    stub = stubs.InferenceStub(channel)
    answer = await stub.ListModels(pb.ListModelsRequest(), metadata=bearer(services.key))
    assert [model.id for model in answer.models] == [MODEL]
    narrow = await services.new_key("narrow", TenantLimits(models=frozenset({"other"})))
    assert not (await stub.ListModels(pb.ListModelsRequest(), metadata=bearer(narrow))).models


async def test_health_needs_no_key_and_follows_readiness(channel: aio.Channel, services: FakeServices) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    for name in ("", INFERENCE):
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=name))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    with pytest.raises(aio.AioRpcError) as caught:
        await stub.Check(health_pb2.HealthCheckRequest(service="nobody"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    watch = stub.Watch(health_pb2.HealthCheckRequest(service=""))
    seen = []
    async for answer in watch:
        seen.append(answer.status)
        services.tenants.admission.draining = True
        if len(seen) == 2:
            break
    watch.cancel()
    assert seen == [health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING]


async def test_reflection_lists_the_services(channel: aio.Channel) -> None:
    async def ask() -> AsyncIterator[reflection_pb2.ServerReflectionRequest]:
        yield reflection_pb2.ServerReflectionRequest(list_services="")

    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    async for answer in stub.ServerReflectionInfo(ask()):
        names = {service.name for service in answer.list_services_response.service}
        assert {INFERENCE, "grpc.health.v1.Health"} <= names
        break


def test_stubs_are_made_from_the_proto_as_it_is(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="grpcio-tools makes the stubs that are compared")
    generate(tmp_path)
    for made in sorted(tmp_path.iterdir()):
        assert made.read_text() == (HERE / "gen" / made.name).read_text(), f"{made.name}: run daemon.api.grpc.generate"
