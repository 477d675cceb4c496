"""KServe v2 over a real channel: tensors in and out, streams of many requests, errors where Triton puts them."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from grpc import aio

from daemon.api.grpc.gen import kserve_pb2 as kp
from daemon.api.grpc.gen import kserve_pb2_grpc as stubs
from tests.fakes.fake_engine import FakeEngine
from tests.fakes.fake_services import MODEL, FakeServices

EMBEDDER = "embedder"
Key = tuple[tuple[str, str], ...]


def packed(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<I", len(data)) + data


def infer(text: str | None = "hi", *, model: str = MODEL, outputs: tuple[str, ...] = (), **tensors: Any) -> Any:
    """A request with raw contents; tensors by name, a bool or a text each."""
    made = kp.ModelInferRequest(model_name=model, id="7")
    given = ({} if text is None else {"text_input": text}) | tensors
    for name, value in given.items():
        made.inputs.add(name=name, datatype="BOOL" if isinstance(value, bool) else "BYTES", shape=[1])
        made.raw_input_contents.append(bytes([value]) if isinstance(value, bool) else packed(value))
    for output in outputs:
        made.outputs.add(name=output)
    return made


def tensors(response: Any) -> dict[str, Any]:
    read: dict[str, Any] = {}
    for tensor, raw in zip(response.outputs, response.raw_output_contents, strict=True):
        if tensor.datatype == "BYTES":
            values, at = [], 0
            while at < len(raw):
                (size,) = struct.unpack_from("<I", raw, at)
                values.append(raw[at + 4 : at + 4 + size].decode())
                at += 4 + size
        else:
            kind = {"FP32": "f", "UINT32": "I"}[tensor.datatype]
            values = list(struct.unpack(f"<{len(raw) // 4}{kind}", raw))
        assert list(tensor.shape) == [len(values)]
        read[tensor.name] = values[0] if len(values) == 1 else values
    return read


async def stream(stub: Any, requests: list[Any], metadata: Key) -> list[Any]:
    async def send() -> AsyncIterator[Any]:
        for request in requests:
            yield request

    return [answer async for answer in stub.ModelStreamInfer(send(), metadata=metadata)]


@pytest.fixture
def stub(channel: aio.Channel) -> Any:
    return stubs.GRPCInferenceServiceStub(channel)


async def test_infer_prepends_the_input_unless_excluded(stub: Any, keyed: Key) -> None:
    assert tensors(await stub.ModelInfer(infer(), metadata=keyed)) == {"text_output": "hiHello there, Par"}
    answer = await stub.ModelInfer(infer(exclude_input_in_output=True), metadata=keyed)
    assert (answer.id, answer.model_name, answer.model_version) == ("7", MODEL, "1")
    assert tensors(answer) == {"text_output": "Hello there, Par"}


async def test_infer_reads_typed_contents_as_raw_ones(stub: Any, keyed: Key) -> None:
    request = kp.ModelInferRequest(model_name=MODEL)
    text = request.inputs.add(name="text_input", datatype="BYTES", shape=[1, 1])
    text.contents.bytes_contents.append(b"hi")
    flag = request.inputs.add(name="exclude_input_in_output", datatype="BOOL", shape=[1])
    flag.contents.bool_contents.append(True)
    assert tensors(await stub.ModelInfer(request, metadata=keyed)) == {"text_output": "Hello there, Par"}


async def test_infer_returns_what_flags_ask_for(stub: Any, keyed: Key, services: FakeServices) -> None:
    request = infer(
        sampling_parameters=json.dumps({"max_tokens": "3", "temperature": 0, "logprobs": 1}),
        exclude_input_in_output=True,
        return_finish_reason=True,
        return_cumulative_logprob=True,
        return_logprobs=True,
        return_num_input_tokens=True,
        return_num_output_tokens=True,
    )
    read = tensors(await stub.ModelInfer(request, metadata=keyed))
    assert read["text_output"] == "Hel"
    assert read["finish_reason"] == "length"
    assert read["cumulative_logprob"] == pytest.approx(-0.75)
    assert [entry["token"] for entry in json.loads(read["logprobs"])] == ["H", "e", "l"]
    assert (read["num_input_tokens"], read["num_output_tokens"]) == (2, 3)
    assert services.engine.submitted[0].sampling.max_tokens == 3


async def test_infer_named_outputs_are_those_that_come(stub: Any, keyed: Key) -> None:
    answer = await stub.ModelInfer(infer(outputs=("num_output_tokens",)), metadata=keyed)
    assert tensors(answer) == {"num_output_tokens": 16}


async def test_infer_takes_sampling_from_parameters(stub: Any, keyed: Key, services: FakeServices) -> None:
    request = infer()
    request.parameters["max_tokens"].int64_param = 2
    request.parameters["temperature"].double_param = 0.5
    await stub.ModelInfer(request, metadata=keyed)
    (submitted,) = services.engine.submitted
    assert (submitted.sampling.max_tokens, submitted.sampling.temperature) == (2, 0.5)


async def test_infer_several_choices_are_one_tensor(stub: Any, keyed: Key) -> None:
    request = infer(sampling_parameters='{"n": 2, "max_tokens": 2}', exclude_input_in_output=True)
    assert tensors(await stub.ModelInfer(request, metadata=keyed)) == {"text_output": ["He", "He"]}


def wrong_requests() -> dict[str, tuple[Any, grpc.StatusCode, str]]:
    bad = grpc.StatusCode.INVALID_ARGUMENT
    shape, kind, length, both, few, version = infer(), infer(), infer(), infer(), infer(stream=False), infer()
    shape.inputs[0].shape[:] = [2]
    kind.inputs[0].datatype = "INT32"
    length.raw_input_contents[0] = b"\x09\x00\x00\x00hi"
    both.inputs[0].contents.bytes_contents.append(b"hi")
    del few.raw_input_contents[1:]
    version.model_version = "2"
    parameter = infer()
    parameter.parameters["priority"].int64_param = 3
    return {
        "unknown tensor": (infer(nonsense="x"), bad, "nonsense"),
        "missing text": (infer(None, exclude_input_in_output=True), bad, "text_input"),
        "wrong shape": (shape, bad, "shape [2]"),
        "wrong datatype": (kind, bad, "INT32"),
        "length disagrees": (length, bad, "(9)"),
        "both contents": (both, bad, "both"),
        "contents missing": (few, bad, "1 raw_input_contents"),
        "image": (infer(image="aGk="), bad, "text only"),
        "stream": (infer(stream=True), bad, "ModelStreamInfer"),
        "unknown output": (infer(outputs=("nonsense",)), bad, "nonsense"),
        "unknown sampling": (infer(sampling_parameters='{"nonsense": 1}'), bad, "nonsense"),
        "bad sampling": (infer(sampling_parameters='{"temperature": 9}'), bad, "temperature"),
        "broken sampling": (infer(sampling_parameters="{"), bad, "sampling_parameters"),
        "unknown parameter": (parameter, bad, "priority"),
        "unknown version": (version, grpc.StatusCode.NOT_FOUND, "version"),
        "unknown model": (infer(model="absent"), grpc.StatusCode.NOT_FOUND, "absent"),
    }


@pytest.mark.parametrize("name", wrong_requests())
async def test_infer_refuses_by_name(stub: Any, keyed: Key, services: FakeServices, name: str) -> None:
    request, code, said = wrong_requests()[name]
    with pytest.raises(aio.AioRpcError) as caught:
        await stub.ModelInfer(request, metadata=keyed)
    assert caught.value.code() is code
    assert said in str(caught.value.details())
    await services.freed()


async def test_infer_deadline_aborts(stub: Any, keyed: Key, services: FakeServices) -> None:
    services.engine.hold = asyncio.Event()
    with pytest.raises(aio.AioRpcError) as caught:
        await stub.ModelInfer(infer(), metadata=keyed, timeout=0.3)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await services.freed()


async def test_infer_own_timeout_is_a_deadline_too(stub: Any, keyed: Key, services: FakeServices) -> None:
    services.engine.hold = asyncio.Event()
    request = infer()
    request.parameters["timeout"].int64_param = 200_000
    with pytest.raises(aio.AioRpcError) as caught:
        await stub.ModelInfer(request, metadata=keyed)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await services.freed()


async def test_stream_pieces_join_to_the_whole(stub: Any, keyed: Key) -> None:
    flags = {"return_num_output_tokens": True, "return_finish_reason": True}
    request = infer(stream=True, sampling_parameters='{"max_tokens": 30}', **flags)
    answers = [one.infer_response for one in await stream(stub, [request], keyed)]
    read = [tensors(one) for one in answers]
    assert "".join(one["text_output"] for one in read) == "Hello there, Paris!"
    assert sum(one["num_output_tokens"] for one in read) == 19
    assert [one["finish_reason"] for one in read] == [""] * (len(read) - 1) + ["stop"]
    assert [one.parameters["triton_final_response"].bool_param for one in answers] == [False] * (len(read) - 1) + [True]


@pytest.mark.parametrize("streamed", [False, True])
async def test_stream_empty_final_response_comes_last(stub: Any, keyed: Key, streamed: bool) -> None:
    request = infer(stream=streamed)
    request.parameters["triton_enable_empty_final_response"].bool_param = True
    answers = [one.infer_response for one in await stream(stub, [request], keyed)]
    assert [one.parameters["triton_final_response"].bool_param for one in answers] == [False] * (len(answers) - 1) + [
        True
    ]
    assert [bool(one.outputs) for one in answers] == [True] * (len(answers) - 1) + [False]
    assert answers[-1].id == "7"


async def test_stream_many_requests_are_told_apart_by_id(stub: Any, keyed: Key) -> None:
    requests = []
    for number in range(20):
        request = infer(stream=True, sampling_parameters=json.dumps({"max_tokens": number + 1}))
        request.id = str(number)
        requests.append(request)
    texts: dict[str, str] = {}
    for answer in await stream(stub, requests, keyed):
        assert not answer.error_message
        one = answer.infer_response
        texts[one.id] = texts.get(one.id, "") + tensors(one)["text_output"]
    assert texts == {str(number): "Hello there, Paris!"[: number + 1] for number in range(20)}


async def test_stream_errors_are_messages_and_the_stream_goes_on(stub: Any, keyed: Key) -> None:
    asks_for_input = infer(stream=True, exclude_input_in_output=False)
    asks_for_input.id = "bad"
    answers = await stream(stub, [asks_for_input, infer(exclude_input_in_output=True)], keyed)
    by_id = {one.infer_response.id: one for one in answers}
    assert "exclude_input_in_output" in by_id["bad"].error_message
    assert tensors(by_id["7"].infer_response) == {"text_output": "Hello there, Par"}


async def test_stream_errors_are_statuses_where_asked(stub: Any, keyed: Key, services: FakeServices) -> None:
    services.engine.hold = asyncio.Event()
    with pytest.raises(aio.AioRpcError) as caught:
        await stream(stub, [infer(), infer(nonsense="x")], (*keyed, ("triton_grpc_error", "true")))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    await services.freed()


async def test_stream_cancelled_leaves_nothing(stub: Any, keyed: Key, services: FakeServices) -> None:
    services.engine.token_s = 0.01
    done = asyncio.Event()

    async def send() -> AsyncIterator[Any]:
        for number in range(5):
            request = infer(stream=True, sampling_parameters='{"max_tokens": 2000, "ignore_eos": true}')
            request.id = str(number)
            yield request
        await done.wait()

    call = stub.ModelStreamInfer(send(), metadata=keyed)
    async for _ in call:
        if len(services.engine.open) == 5:
            break
    call.cancel()
    await services.freed()
    done.set()


async def test_embedding_request_answers_vectors(stub: Any, keyed: Key, embedder: FakeEngine) -> None:
    asked = {"input": ["one", "two"], "encoding_format": "float"}
    request = infer(None, model=EMBEDDER, embedding_request=json.dumps(asked), return_num_input_tokens=True)
    read = tensors(await stub.ModelInfer(request, metadata=keyed))
    assert [len(json.loads(one)) for one in read["text_output"]] == [8, 8]
    assert read["num_input_tokens"] == 6


async def test_metadata_config_and_index_tell_the_models(
    stub: Any, keyed: Key, services: FakeServices, embedder: FakeEngine
) -> None:
    assert (await stub.ServerLive(kp.ServerLiveRequest())).live
    assert (await stub.ServerReady(kp.ServerReadyRequest())).ready
    assert (await stub.ServerMetadata(kp.ServerMetadataRequest())).name == "bayard"
    ready = await stub.ModelReady(kp.ModelReadyRequest(name=MODEL), metadata=keyed)
    absent = await stub.ModelReady(kp.ModelReadyRequest(name="absent"), metadata=keyed)
    assert (ready.ready, absent.ready) == (True, False)
    told = await stub.ModelMetadata(kp.ModelMetadataRequest(name=MODEL), metadata=keyed)
    assert "text_input" in [tensor.name for tensor in told.inputs]
    config = (await stub.ModelConfig(kp.ModelConfigRequest(name=EMBEDDER), metadata=keyed)).config
    assert [tensor.name for tensor in config.input if not tensor.optional] == ["embedding_request"]
    listed = await stub.RepositoryIndex(kp.RepositoryIndexRequest(), metadata=keyed)
    assert [(model.name, model.state) for model in listed.models] == [(EMBEDDER, "READY"), (MODEL, "READY")]
    services.tenants.admission.draining = True
    assert not (await stub.ServerReady(kp.ServerReadyRequest())).ready
