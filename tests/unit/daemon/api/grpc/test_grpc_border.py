"""The border of gRPC: keys at every RPC, statuses with details, sizes, sockets, reflection in both versions."""

from __future__ import annotations

import asyncio
import os
import stat
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from google.rpc import error_details_pb2
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from grpc_status import rpc_status

from daemon.api.grpc import server as grpc_server_module
from daemon.api.grpc.gen import bayard_pb2 as pb
from daemon.api.grpc.gen import bayard_pb2_grpc as stubs
from daemon.api.grpc.gen import kserve_pb2 as kp
from daemon.api.grpc.guard import OPEN_METHODS, needs_key
from daemon.api.grpc.server import KSERVE, build_server
from daemon.servers import Grpc
from daemon.tenants.limits import TenantLimits
from tests.fakes.fake_engine import FakeEngine
from tests.fakes.fake_services import MODEL, FakeServices, fake_services

EMBEDDER = "embedder"
Key = tuple[tuple[str, str], ...]
METHODS = [
    (f"/{service.full_name}/{method.name}", method)
    for file in (pb.DESCRIPTOR, kp.DESCRIPTOR)
    for service in file.services_by_name.values()
    for method in service.methods
]


async def ask(channel: aio.Channel, path: str, method: Any, metadata: Key = ()) -> Any:
    """Call with an empty message, whatever the arity; the first answer."""
    nothing = b""

    async def send() -> AsyncIterator[bytes]:
        yield nothing

    match (method.client_streaming, method.server_streaming):
        case (False, False):
            return await channel.unary_unary(path)(nothing, metadata=metadata)
        case (False, True):
            return [one async for one in channel.unary_stream(path)(nothing, metadata=metadata)]
        case _:
            return [one async for one in channel.stream_stream(path)(send(), metadata=metadata)]


@pytest.mark.parametrize(("path", "method"), METHODS, ids=[path for path, _ in METHODS])
async def test_every_method_needs_a_key_or_is_open_by_name(channel: aio.Channel, path: str, method: Any) -> None:
    if not needs_key(path):
        assert path in OPEN_METHODS
        await ask(channel, path, method)
        return
    for metadata in ((), (("authorization", "Bearer bk_live_wrong"),)):
        with pytest.raises(aio.AioRpcError) as caught:
            await ask(channel, path, method, metadata)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_unknown_method_is_unimplemented(channel: aio.Channel, keyed: Key) -> None:
    with pytest.raises(aio.AioRpcError) as caught:
        await channel.unary_unary(f"/{KSERVE}/TraceSetting")(b"", metadata=keyed)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_every_answer_tells_its_request_id(channel: aio.Channel, keyed: Key) -> None:
    call = stubs.InferenceStub(channel).ListModels(pb.ListModelsRequest(), metadata=keyed)
    assert str(dict(await call.initial_metadata())["x-request-id"]).startswith("req_")


async def test_error_details_tell_code_field_and_wait(channel: aio.Channel, services: FakeServices, keyed: Key) -> None:
    request = pb.GenerateRequest(model=MODEL, text="hi", temperature=9)
    details = await refused(channel, request, keyed)
    assert details["ErrorInfo"].reason == "invalid_parameter"
    assert details["BadRequest"].field_violations[0].field == "temperature"
    slow = await services.new_key("slow", TenantLimits(requests_per_minute=1))
    metadata = (("x-api-key", slow),)
    async for _ in stubs.InferenceStub(channel).Generate(pb.GenerateRequest(model=MODEL, text="hi"), metadata=metadata):
        pass
    details = await refused(channel, pb.GenerateRequest(model=MODEL, text="hi"), metadata)
    assert details["ErrorInfo"].reason == "quota_exceeded"
    assert details["RetryInfo"].retry_delay.seconds > 0


async def refused(channel: aio.Channel, request: pb.GenerateRequest, metadata: Key) -> dict[str, Any]:
    with pytest.raises(aio.AioRpcError) as caught:
        async for _ in stubs.InferenceStub(channel).Generate(request, metadata=metadata):
            pass
    trailing = dict(caught.value.trailing_metadata() or ())
    status = rpc_status.status_pb2.Status.FromString(trailing["grpc-status-details-bin"])
    assert status.code == caught.value.code().value[0]
    found = {}
    for packed in status.details:
        kind = getattr(error_details_pb2, packed.type_url.rpartition(".")[2])
        found[kind.__name__] = kind.FromString(packed.value)
    return found


async def test_message_above_the_bound_is_resource_exhausted(tmp_path: Path) -> None:
    async with fake_services(tmp_path) as services:
        small = services.settings.grpc.model_copy(update={"max_message_bytes": 4096})
        services.settings = services.settings.model_copy(update={"grpc": small})
        server = build_server(services)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            with pytest.raises(aio.AioRpcError) as caught:
                async for _ in stubs.InferenceStub(channel).Generate(
                    pb.GenerateRequest(model=MODEL, text="x" * 5000), metadata=(("x-api-key", services.key),)
                ):
                    pass
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        await server.stop(None)


async def test_unix_socket_serves_beside_tcp_and_goes_with_the_server(services: FakeServices) -> None:
    with tempfile.TemporaryDirectory(prefix="bd-") as folder:
        path = Path(folder) / "run" / "grpc.sock"
        grpc_server = Grpc(build_server(services), "127.0.0.1", 0, path)
        await grpc_server.start()
        assert grpc_server.port
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o660
        async with aio.insecure_channel(f"unix:{path}") as channel:
            metadata = (("authorization", f"Bearer {services.key}"),)
            answer = await stubs.InferenceStub(channel).ListModels(pb.ListModelsRequest(), metadata=metadata)
            assert [model.id for model in answer.models] == [MODEL]
        await grpc_server.stop()
        assert not path.exists()


@pytest.mark.parametrize("package", ["grpc.reflection.v1", "grpc.reflection.v1alpha"])
async def test_reflection_describes_every_service(channel: aio.Channel, package: str) -> None:
    call = channel.stream_stream(
        f"/{package}.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )

    async def send(*requests: Any) -> AsyncIterator[Any]:
        for request in requests:
            yield request

    listing = reflection_pb2.ServerReflectionRequest(list_services="")
    (listed,) = [one async for one in call(send(listing))]
    names = [service.name for service in listed.list_services_response.service]
    assert {"bayard.v1.Inference", KSERVE, "grpc.health.v1.Health", f"{package}.ServerReflection"} <= set(names)
    asked = [reflection_pb2.ServerReflectionRequest(file_containing_symbol=name) for name in names]
    answers = [one async for one in call(send(*asked))]
    assert all(answer.HasField("file_descriptor_response") for answer in answers)
    absent = reflection_pb2.ServerReflectionRequest(file_containing_symbol="no.such.Thing")
    (unknown,) = [one async for one in call(send(absent))]
    assert unknown.HasField("error_response")


async def test_health_is_told_for_each_model_and_follows_it(channel: aio.Channel, services: FakeServices) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    kind = health_pb2.HealthCheckResponse
    for name in (MODEL, KSERVE):
        assert (await stub.Check(health_pb2.HealthCheckRequest(service=name))).status == kind.SERVING
    seen = []
    watch = stub.Watch(health_pb2.HealthCheckRequest(service=MODEL))
    async for answer in watch:
        seen.append(answer.status)
        services.router.remove(f"w-{MODEL}")
        if len(seen) == 2:
            break
    watch.cancel()
    assert seen == [kind.SERVING, kind.NOT_SERVING]
    unknown = stub.Watch(health_pb2.HealthCheckRequest(service="nobody"))
    async for answer in unknown:
        assert answer.status == kind.SERVICE_UNKNOWN
        break
    unknown.cancel()


async def test_generate_continues_text_and_token_ids(channel: aio.Channel, services: FakeServices, keyed: Key) -> None:
    stub = stubs.InferenceStub(channel)
    for prompt in ({"text": "hi"}, {"token_ids": pb.TokenIds(ids=list(b"hi"))}):
        request = pb.GenerateRequest(model=MODEL, max_tokens=5, echo=True, **prompt)
        deltas = [delta async for delta in stub.Generate(request, metadata=keyed)]
        assert "".join(delta.text for delta in deltas) == "hiHello"
        assert (deltas[-1].finished.prompt_tokens, deltas[-1].finished.completion_tokens) == (2, 5)
    assert len({tuple(submitted.prompt_token_ids) for submitted in services.engine.submitted}) == 1
    with pytest.raises(aio.AioRpcError) as caught:
        await stub.Generate(pb.GenerateRequest(model=MODEL), metadata=keyed).read()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_embed_keeps_order_and_counts_tokens(channel: aio.Channel, keyed: Key, embedder: FakeEngine) -> None:
    stub = stubs.InferenceStub(channel)
    both = await stub.Embed(pb.EmbedRequest(model=EMBEDDER, texts=["abc", "zz"]), metadata=keyed)
    ids = [pb.TokenIds(ids=list(b"abc")), pb.TokenIds(ids=list(b"zz"))]
    same = await stub.Embed(pb.EmbedRequest(model=EMBEDDER, token_ids=ids, dimensions=8), metadata=keyed)
    assert [list(one.values) for one in both.embeddings] == [list(one.values) for one in same.embeddings]
    assert both.usage.prompt_tokens == 5
    with pytest.raises(aio.AioRpcError) as caught:
        await stub.Embed(pb.EmbedRequest(model=EMBEDDER, texts=["abc"], dimensions=4), metadata=keyed)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_tokenize_and_detokenize_are_inverse(channel: aio.Channel, keyed: Key) -> None:
    stub = stubs.InferenceStub(channel)
    read = await stub.Tokenize(pb.TokenizeRequest(model=MODEL, text="déjà"), metadata=keyed)
    assert b"".join(read.token_bytes).decode() == "déjà"
    back = await stub.Detokenize(pb.DetokenizeRequest(model=MODEL, token_ids=read.token_ids), metadata=keyed)
    assert back.text == "déjà"
    messages = [pb.Message(role="user", content="hi")]
    talk = await stub.Tokenize(pb.TokenizeRequest(model=MODEL, messages=messages), metadata=keyed)
    chat = [one async for one in stub.Chat(pb.ChatRequest(model=MODEL, messages=messages), metadata=keyed)]
    assert len(talk.token_ids) == chat[-1].finished.prompt_tokens


async def test_connection_that_says_nothing_and_one_without_calls_are_closed(
    services: FakeServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_server_module, "HANDSHAKE_MS", 300)
    monkeypatch.setattr(grpc_server_module, "IDLE_MS", 300)
    server = build_server(services)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    process = psutil.Process()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    async with asyncio.timeout(10):
        while await reader.read(4096):  # settings may come first
            continue
    writer.close()
    async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        metadata = (("x-api-key", services.key),)
        for _ in range(2):  # after the quiet it connects again by itself
            assert (await stubs.InferenceStub(channel).ListModels(pb.ListModelsRequest(), metadata=metadata)).models
            async with asyncio.timeout(10):
                while any(  # noqa: ASYNC110
                    one.status == "ESTABLISHED" and one.laddr.port == port for one in process.net_connections()
                ):
                    await asyncio.sleep(0.05)
    await server.stop(None)
