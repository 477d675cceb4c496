"""No number of a request is larger than what a message to a worker can hold, whichever API it came by."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest
from msgspec import inspect

from daemon.api.anthropic.request import CountBody, MessagesBody
from daemon.api.body import convert
from daemon.api.embeddings.request import EmbeddingsBody
from daemon.api.embeddings.rerank import RerankBody
from daemon.api.grpc.gen import bayard_pb2 as pb
from daemon.api.grpc.gen import kserve_pb2 as kp
from daemon.api.grpc.kserve_request import read_infer
from daemon.api.ollama import request as ollama
from daemon.api.openai.chat_request import ChatBody
from daemon.api.openai.completion_request import CompletionBody
from daemon.api.openai.responses.request import ResponsesBody
from daemon.api.openai.tokenize import DetokenizeBody, TokenizeBody
from engine.client import EngineClient
from engine.errors import InvalidParameter
from engine.messages import MAX_INT, Embed, SamplingParams, Submit, TokenDelta
from tests.fakes.fake_services import MODEL, FakeServices

BODIES = (
    ChatBody, CompletionBody, ResponsesBody, TokenizeBody, DetokenizeBody, EmbeddingsBody, RerankBody, MessagesBody,
    CountBody, ollama.ChatBody, ollama.GenerateBody, ollama.EmbedBody, ollama.EmbeddingsBody,
)  # fmt: skip
HI = [{"role": "user", "content": "hi"}]
CALLS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HI},
    "/v1/completions": {"prompt": "hi"},
    "/v1/messages": {"messages": HI, "max_tokens": 3},
    "/api/chat": {"messages": HI},
    "/api/generate": {"prompt": "hi"},
}


def numbers_of(kind: inspect.Type, seen: set[type], where: str) -> list[tuple[str, inspect.IntType]]:
    """Every whole number that a value of that type may hold, and where."""
    if isinstance(kind, inspect.Metadata):
        return numbers_of(kind.type, seen, where)
    if isinstance(kind, inspect.IntType):
        return [(where, kind)]
    inner: list[tuple[str, inspect.Type]] = []
    if isinstance(kind, inspect.StructType):
        if kind.cls not in seen:
            seen.add(kind.cls)
            inner = [(f"{where}.{field.name}", field.type) for field in kind.fields]
    elif isinstance(kind, inspect.UnionType):
        inner = [(where, one) for one in kind.types]
    elif isinstance(kind, inspect.DictType):
        inner = [(where, kind.key_type), (where, kind.value_type)]
    elif isinstance(kind, inspect.CollectionType):
        inner = [(where, kind.item_type)]
    return [found for name, one in inner for found in numbers_of(one, seen, name)]


@pytest.mark.parametrize("body", [*BODIES, SamplingParams])
def test_every_whole_number_has_bounds_that_a_message_can_hold(body: type) -> None:
    numbers = numbers_of(inspect.type_info(body), set(), body.__name__)
    assert numbers or body in (TokenizeBody, CountBody, ollama.EmbeddingsBody)
    for where, number in numbers:
        assert number.ge is not None, where
        assert number.le is not None, where
        assert -MAX_INT - 1 <= number.ge < number.le <= MAX_INT, where


async def test_number_beyond_the_bounds_is_refused_by_its_name(http: httpx.AsyncClient, services: FakeServices) -> None:
    beyond = {"top_k": (2**64, 2**63), "repetition_penalty": (1e-7, 1e7)}
    for path, name in itertools.product(CALLS, beyond):
        if path == "/v1/messages" and name != "top_k":
            continue  # it has no such field
        for value in beyond[name]:
            asked, field = {"model": MODEL, **CALLS[path]}, name
            if path.startswith("/api"):
                field = {"repetition_penalty": "repeat_penalty"}.get(name, name)
                asked["options"] = {field: value}
            else:
                asked[field] = value
            answer = await http.post(path, json=asked)
            assert answer.status_code == 400, answer.text
            assert field in answer.text
            if path.startswith("/v1") and path != "/v1/messages":
                assert answer.json()["error"]["param"] == field
    assert not services.engine.submitted


async def test_bounds_of_the_repetition_penalty_are_the_engines(
    http: httpx.AsyncClient, services: FakeServices
) -> None:
    for value, good in ((1e-6, True), (1e6, True), (9e-7, False), (1.1e6, False)):
        asked = {"model": MODEL, "messages": HI, "max_tokens": 1, "repetition_penalty": value}
        answer = await http.post("/v1/chat/completions", json=asked)
        assert answer.status_code == (200 if good else 400)
    assert [one.sampling.repetition_penalty for one in services.engine.submitted] == [1e-6, 1e6]


@pytest.mark.parametrize("text", ["9" * 30, "1e400", "NaN"])
def test_numbers_of_kserve_have_the_same_bounds(text: str) -> None:
    """They may come as texts."""
    request = kp.ModelInferRequest(model_name=MODEL)
    tensor = request.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    tensor.contents.bytes_contents.append(b"hi")
    request.parameters["top_k"].string_param = text
    with pytest.raises(InvalidParameter) as refused:
        read_infer(request, may_stream=False)
    assert refused.value.param == "top_k"
    assert pb.ChatRequest(top_k=2**31 - 1).top_k < MAX_INT  # bayard.v1 has 32 bits for it
    with pytest.raises(InvalidParameter):
        convert({"model": MODEL, "prompt": "hi", "temperature": float("nan")}, CompletionBody)


@pytest.mark.parametrize(
    "request_",
    [
        Submit("r", [1], SamplingParams(max_tokens=1, top_k=2**64)),
        Submit("r", [1], SamplingParams(max_tokens=1, seed=-(2**63) - 1)),
        Embed("r", [2**64]),
        Embed("r", [1], tenant="\ud800"),
    ],
)
async def test_client_refuses_what_no_message_can_hold(request_: Submit | Embed) -> None:
    client = EngineClient("ipc:///nowhere")
    asked = client.embed(request_) if isinstance(request_, Embed) else anext(client.submit(request_))
    with pytest.raises(InvalidParameter, match="cannot be told to a worker"):
        await asked
    assert client.inflight == 0


@pytest.mark.parametrize("more", [{"n": 2}, {"n": 2, "stream": True}])
async def test_fault_below_the_api_ends_the_request_at_once(
    http: httpx.AsyncClient, services: FakeServices, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    """Whatever an engine's client raises: the answer is an error, the other choices are ended, nothing is left."""
    ordinary = services.engine.submit
    services.engine.hold = asyncio.Event()

    async def submit(asked: Submit) -> AsyncIterator[TokenDelta]:
        if asked.request_id.endswith(".1"):
            raise OverflowError("a fault of ours")
        async for delta in ordinary(asked):
            yield delta

    monkeypatch.setattr(services.engine, "submit", submit)
    async with asyncio.timeout(5):
        answer = await http.post("/v1/chat/completions", json={"model": MODEL, "messages": HI, **more})
    data = [part for part in answer.text.split("data: ") if part.startswith("{")]
    told = json.loads(data[-1]) if "stream" in more else answer.json()
    assert told["error"]["code"] == "internal_error", answer.text
    await services.freed()
    assert not services.engine.open


def test_decoders_do_not_need_more_digits_than_python_reads() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"model":"m","prompt":"hi","top_k":' + b"9" * 5000 + b"}", type=CompletionBody)
