"""/v1/embeddings and /v1/rerank: order, forms, bounds, and the same door and ending as generations."""

from __future__ import annotations

import asyncio
import base64
import struct
from typing import Any

import httpx
import openai
import pytest

from daemon.tenants.limits import TenantLimits
from tests.fakes.fake_engine import FakeEngine, unit_vector
from tests.fakes.fake_services import MODEL, FakeServices, add_replica

EMBEDDER = "embedder"


@pytest.fixture
def embedder(services: FakeServices) -> FakeEngine:
    engine = FakeEngine()
    add_replica(services.router, EMBEDDER, engine, max_context_tokens=64, dimensions=8)
    return engine


def floats(text: str) -> list[float]:
    return list(struct.unpack("<8f", unit_vector(list(text.encode()), 8)))


async def test_client_default_is_base64_and_equals_floats(client: openai.AsyncOpenAI, embedder: FakeEngine) -> None:
    default = await client.embeddings.create(model=EMBEDDER, input="abc")
    plain = await client.embeddings.create(model=EMBEDDER, input="abc", encoding_format="float", dimensions=8)
    assert default.data[0].embedding == plain.data[0].embedding == floats("abc")
    assert (plain.usage.prompt_tokens, plain.usage.total_tokens, plain.model) == (3, 3, EMBEDDER)


@pytest.mark.parametrize("given", [["a", "bc", "d"], [[97], [98, 99], [100]]])
async def test_many_inputs_keep_their_order(http: httpx.AsyncClient, embedder: FakeEngine, given: Any) -> None:
    answer = (await http.post("/v1/embeddings", json={"model": EMBEDDER, "input": given})).json()
    assert [one["index"] for one in answer["data"]] == [0, 1, 2]
    assert [one["embedding"] for one in answer["data"]] == [floats("a"), floats("bc"), floats("d")]


async def test_one_list_of_token_ids_is_one_input(http: httpx.AsyncClient, embedder: FakeEngine) -> None:
    answer = (
        await http.post("/v1/embeddings", json={"model": EMBEDDER, "input": [97, 98], "encoding_format": "base64"})
    ).json()
    (one,) = answer["data"]
    assert base64.b64decode(one["embedding"]) == unit_vector([97, 98], 8)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": ["a", 1]}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": [999]}, "input"),
        ({"dimensions": 4}, "dimensions"),
        ({"encoding_format": "int8"}, "encoding_format"),
        ({"nonsense": 1}, "nonsense"),
        ({"model": MODEL}, "model"),
    ],
)
async def test_refusals_name_the_field(
    http: httpx.AsyncClient, embedder: FakeEngine, fields: dict[str, Any], param: str
) -> None:
    response = await http.post("/v1/embeddings", json={"model": EMBEDDER, "input": "a", **fields})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


async def test_input_beyond_the_context_is_refused(http: httpx.AsyncClient, embedder: FakeEngine) -> None:
    response = await http.post("/v1/embeddings", json={"model": EMBEDDER, "input": ["a", "x" * 65]})
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert "input[1]" in response.json()["error"]["message"]
    assert not embedder.embedded


async def test_embedding_model_writes_no_text(http: httpx.AsyncClient, embedder: FakeEngine) -> None:
    body = {"model": EMBEDDER, "messages": [{"role": "user", "content": "hi"}]}
    response = await http.post("/v1/chat/completions", json=body)
    assert response.status_code == 400
    assert "embeddings" in response.json()["error"]["message"]


async def test_limits_are_those_of_generations(http: httpx.AsyncClient, services: FakeServices) -> None:
    engine = FakeEngine(hold=asyncio.Event())
    add_replica(services.router, EMBEDDER, engine, dimensions=8)
    key = await services.new_key("one", TenantLimits(max_concurrency=1, max_queue=0, models=frozenset({EMBEDDER})))
    headers = {"authorization": f"Bearer {key}"}
    body = {"model": EMBEDDER, "input": ["a"] * 200}
    first = asyncio.create_task(http.post("/v1/embeddings", json=body, headers=headers))
    while not engine.open:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    assert [live.model for live in services.serving.live.all()] == [EMBEDDER]
    second = await http.post("/v1/embeddings", json=body, headers=headers)
    assert (second.status_code, second.json()["error"]["code"]) == (429, "quota_exceeded")
    assert engine.hold is not None
    engine.hold.set()
    assert len((await first).json()["data"]) == 200
    assert engine.peak_open == 64
    forbidden = await http.post("/v1/embeddings", json={"model": MODEL, "input": "a"}, headers=headers)
    assert forbidden.status_code in (400, 403)
    assert services.tenants.admission.running == 0
    text = services.metrics.render().decode()
    assert f'bayard_requests_total{{model="{EMBEDDER}",outcome="stop"}} 1.0' in text


async def test_disconnect_and_cancel_abort_every_text(http: httpx.AsyncClient, services: FakeServices) -> None:
    engine = FakeEngine(hold=asyncio.Event())
    add_replica(services.router, EMBEDDER, engine, dimensions=8)
    body = {"model": EMBEDDER, "input": ["a", "b", "c"]}
    for way in ("disconnect", "cancel"):
        asking = asyncio.create_task(http.post("/v1/embeddings", json=body))
        while len(engine.open) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        if way == "disconnect":
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        else:
            (live,) = services.serving.live.all()
            await services.serving.live.cancel(live.id)
            assert (await asking).json()["error"]["code"] == "cancelled"
        async with asyncio.timeout(2):
            while engine.open or len(services.serving.live) or services.tenants.admission.running:  # noqa: ASYNC110
                await asyncio.sleep(0.005)


async def test_failing_worker_is_told_once(http: httpx.AsyncClient, services: FakeServices) -> None:
    engine = FakeEngine(fail_after=0)
    add_replica(services.router, EMBEDDER, engine, dimensions=8)
    response = await http.post("/v1/embeddings", json={"model": EMBEDDER, "input": ["a", "b"]})
    assert (response.status_code, response.json()["error"]["code"]) == (503, "worker_lost")
    assert services.tenants.admission.running == 0


async def test_rerank_sorts_by_cosine(http: httpx.AsyncClient, embedder: FakeEngine) -> None:
    body = {"model": EMBEDDER, "query": "abc", "documents": ["hhh", "abd", {"text": "cba"}], "top_n": 2}
    answer = (await http.post("/v1/rerank", json={**body, "return_documents": True})).json()
    assert [result["index"] for result in answer["results"]] == [2, 1]
    assert answer["results"][0]["relevance_score"] == pytest.approx(1.0)
    assert answer["results"][0]["document"] == {"text": "cba"}
    assert answer["usage"]["total_tokens"] == 12


@pytest.mark.parametrize("fields", [{"query": ""}, {"documents": []}, {"documents": ["", "b"]}, {"model": MODEL}])
async def test_rerank_refusals(http: httpx.AsyncClient, embedder: FakeEngine, fields: dict[str, Any]) -> None:
    body = {"model": EMBEDDER, "query": "a", "documents": ["b"], **fields}
    assert (await http.post("/v1/rerank", json=body)).status_code == 400
