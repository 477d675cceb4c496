"""Ollama's routes as its clients use them: lines of JSON, options, formats, tools, and what is refused."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from daemon.api.http import PublicApp
from daemon.api.sse import StreamKeeper
from daemon.models.record import FileRecord, ModelRecord, ModelState
from daemon.store.base import utc_now
from tests.fakes.fake_engine import FakeEngine, unit_vector
from tests.fakes.fake_services import MODEL, FakeServices, add_replica, http_server
from tests.fakes.fake_text import ByteText

EMBEDDER = "embedder"
HI = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
ADD = {"type": "function", "function": {"name": "add", "description": "adds", "parameters": SCHEMA}}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


def lines(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    return [json.loads(line) for line in response.text.splitlines()]


async def test_chat_streams_lines_by_default(http: httpx.AsyncClient) -> None:
    response = await http.post("/api/chat", json={"model": MODEL, "messages": HI})
    assert response.headers["content-type"] == "application/x-ndjson"
    told = lines(response)
    assert "".join(line["message"]["content"] for line in told) == "Hello there, Paris!"
    assert [line["done"] for line in told] == [False] * (len(told) - 1) + [True]
    last = told[-1]
    assert (last["done_reason"], last["eval_count"], last["model"]) == ("stop", 19, MODEL)
    assert last["total_duration"] >= last["prompt_eval_duration"] >= 0


async def test_chat_whole_says_the_same(http: httpx.AsyncClient) -> None:
    (told,) = lines(await http.post("/api/chat", json={"model": MODEL, "messages": HI, "stream": False}))
    assert told["message"] == {"role": "assistant", "content": "Hello there, Paris!"}
    assert (told["done"], told["done_reason"], told["prompt_eval_count"] > 0) == (True, "stop", True)


@pytest.mark.parametrize("stream", [True, False])
async def test_generate_writes_a_response(http: httpx.AsyncClient, services: FakeServices, stream: bool) -> None:
    body = {"model": MODEL, "prompt": "hi", "system": "Be brief.", "stream": stream, "options": {"num_predict": 5}}
    told = lines(await http.post("/api/generate", json=body))
    assert "".join(line["response"] for line in told) == "Hello"
    assert told[-1]["done_reason"] == "length"
    raw = {"model": MODEL, "prompt": "hi", "raw": True}
    lines(await http.post("/api/generate", json=raw))
    templated, plain = services.engine.submitted
    assert bytes(plain.prompt_token_ids) == b"hi"
    assert b"Be brief." in bytes(templated.prompt_token_ids)


async def test_options_reach_the_engine(http: httpx.AsyncClient, services: FakeServices) -> None:
    options = {"temperature": 0.5, "top_k": 7, "top_p": 0.8, "min_p": 0.1, "repeat_penalty": 1.2, "seed": 3,
               "num_predict": 4, "presence_penalty": 0.5, "frequency_penalty": 0.25, "num_ctx": 512}  # fmt: skip
    lines(await http.post("/api/chat", json={"model": MODEL, "messages": HI, "options": options, "keep_alive": "5m"}))
    lines(await http.post("/api/chat", json={"model": MODEL, "messages": HI}))
    asked, default = (one.sampling for one in services.engine.submitted)
    assert (asked.temperature, asked.top_k, asked.top_p, asked.min_p) == (0.5, 7, 0.8, 0.1)
    assert (asked.repetition_penalty, asked.presence_penalty, asked.frequency_penalty) == (1.2, 0.5, 0.25)
    assert (asked.seed, asked.max_tokens) == (3, 4)
    assert (default.temperature, default.top_k, default.top_p) == (0.8, 40, 0.9)


async def test_stop_ends_before_it(http: httpx.AsyncClient) -> None:
    body = {"model": MODEL, "messages": HI, "stream": False, "options": {"stop": ["there"]}}
    (told,) = lines(await http.post("/api/chat", json=body))
    assert told["message"]["content"] == "Hello "


@pytest.mark.parametrize("form", ["json", SCHEMA])
async def test_format_constrains(http: httpx.AsyncClient, services: FakeServices, form: Any) -> None:
    lines(await http.post("/api/chat", json={"model": MODEL, "messages": HI, "format": form}))
    (submitted,) = services.engine.submitted
    assert submitted.sampling.grammar is not None


@pytest.mark.parametrize("stream", [True, False])
async def test_tool_calls_come_whole(http: httpx.AsyncClient, services: FakeServices, stream: bool) -> None:
    services.engine.reply = CALL + "\n" + CALL.replace("1", "2")
    turns = [
        *HI,
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "add", "arguments": {"a": 0}}}]},
        {"role": "tool", "tool_name": "add", "content": "0"},
    ]
    body = {"model": MODEL, "messages": turns, "tools": [ADD], "stream": stream}
    told = lines(await http.post("/api/chat", json=body))
    calls = [call for line in told for call in line["message"].get("tool_calls", [])]
    assert calls == [{"function": {"name": "add", "arguments": {"a": number}}} for number in (1, 2)]
    assert not "".join(line["message"]["content"] for line in told).strip()


async def test_latest_is_the_name_without_a_tag(http: httpx.AsyncClient, services: FakeServices) -> None:
    add_replica(services.router, "tiny", FakeEngine())
    (told,) = lines(await http.post("/api/chat", json={"model": "tiny:latest", "messages": HI, "stream": False}))
    assert told["model"] == "tiny:latest"


@pytest.mark.parametrize(("path", "key"), [("/api/chat", "message"), ("/api/generate", "response")])
async def test_no_prompt_asks_for_loading(http: httpx.AsyncClient, path: str, key: str) -> None:
    (told,) = lines(await http.post(path, json={"model": MODEL, "keep_alive": 0}))
    assert (told["done"], told["done_reason"], key in told) == (True, "load", True)
    assert (await http.post(path, json={"model": "absent"})).status_code == 404


async def test_body_of_any_media_type_is_read(http: httpx.AsyncClient) -> None:
    content = json.dumps({"model": MODEL, "messages": HI, "stream": False})
    kind = {"content-type": "application/x-www-form-urlencoded"}
    assert (await http.post("/api/chat", content=content, headers=kind)).status_code == 200


@pytest.mark.parametrize(
    ("path", "fields", "said"),
    [
        ("/api/chat", {"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]}, "images"),
        ("/api/chat", {"messages": [{"role": "robot", "content": "x"}]}, "robot"),
        ("/api/chat", {"messages": HI, "format": "xml"}, "xml"),
        ("/api/chat", {"messages": [{"role": "assistant", "content": "x"}]}, "Begin with a user's message"),
        ("/api/chat", {"messages": HI, "think": True}, "think is asked for"),
        ("/api/chat", {"messages": HI, "think": "high"}, "think is 'high'"),
        ("/api/chat", {"messages": HI, "options": {"nonsense": 1}}, "nonsense"),
        ("/api/chat", {"messages": HI, "options": {"mirostat": 2}}, "mirostat"),
        ("/api/chat", {"messages": HI, "options": {"temperature": 9}}, "temperature"),
        ("/api/generate", {"prompt": "x", "images": ["aGk="]}, "images"),
        ("/api/generate", {"prompt": "x", "suffix": "y"}, "suffix"),
        ("/api/generate", {"prompt": "x", "context": [1]}, "context"),
        ("/api/embed", {"input": ["", "x"]}, "input"),
        ("/api/embed", {"input": "x"}, "embeddings"),
    ],
)
async def test_refusals_are_one_sentence(http: httpx.AsyncClient, path: str, fields: dict[str, Any], said: str) -> None:
    response = await http.post(path, json={"model": MODEL, **fields})
    assert response.status_code == 400
    assert list(response.json()) == ["error"]
    assert said in response.json()["error"]


async def test_failure_in_a_stream_is_its_last_line(http: httpx.AsyncClient, services: FakeServices) -> None:
    services.engine.fail_after = 3
    told = lines(await http.post("/api/chat", json={"model": MODEL, "messages": HI}))
    assert [list(line) == ["error"] for line in told] == [False] * (len(told) - 1) + [True]
    await services.freed()


async def test_disconnect_aborts(http: httpx.AsyncClient, services: FakeServices) -> None:
    services.engine.hold = asyncio.Event()
    asking = asyncio.create_task(http.post("/api/chat", json={"model": MODEL, "messages": HI}))
    while not services.engine.open:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await services.freed()


async def test_embed_truncates_unless_told_not_to(http: httpx.AsyncClient, services: FakeServices) -> None:
    engine = FakeEngine()
    add_replica(services.router, EMBEDDER, engine, max_context_tokens=4, dimensions=8)
    (told,) = lines(await http.post("/api/embed", json={"model": EMBEDDER, "input": ["abcdef", "b"]}))
    assert [len(vector) for vector in told["embeddings"]] == [8, 8]
    assert engine.embedded[0].prompt_token_ids == list(b"abcd")
    assert told["prompt_eval_count"] == 5
    refused = await http.post("/api/embed", json={"model": EMBEDDER, "input": "abcdef", "truncate": False})
    assert refused.status_code == 400
    (old,) = lines(await http.post("/api/embeddings", json={"model": EMBEDDER, "prompt": "abc"}))
    assert len(old["embedding"]) == len(unit_vector([1], 8)) // 4
    assert lines(await http.post("/api/embed", json={"model": EMBEDDER, "input": []}))[0]["embeddings"] == []


async def test_catalogue_tells_what_is_served(http: httpx.AsyncClient, services: FakeServices) -> None:
    add_replica(services.router, EMBEDDER, FakeEngine(), dimensions=8)
    services.records[MODEL] = ModelRecord(
        MODEL, ModelState.READY, "gguf", "llama", "/x", False, 134_515_008, 95_000_000, 2048, "Q4_1", "apache-2.0",
        utc_now(), None, (FileRecord("a", 1, "ab" * 32),),
    )  # fmt: skip
    tags = lines(await http.get("/api/tags"))[0]["models"]
    assert [model["name"] for model in tags] == [EMBEDDER, MODEL]
    assert tags[1]["details"]["parameter_size"] == "134.5M"
    assert tags[1]["digest"] == "ab" * 32
    assert lines(await http.get("/api/ps"))[0]["models"][1]["context_length"] == 2048
    shown = lines(await http.post("/api/show", json={"model": MODEL}))[0]
    assert shown["model_info"]["llama.context_length"] == 2048
    assert "completion" in shown["capabilities"]
    assert lines(await http.post("/api/show", json={"name": EMBEDDER}))[0]["capabilities"] == ["embedding"]
    assert (await http.post("/api/show", json={"model": "absent"})).status_code == 404
    assert "version" in lines(await http.get("/api/version"))[0]


@pytest.mark.parametrize("stream", [True, False])
async def test_thinking_stands_beside_the_content(
    http: httpx.AsyncClient, services: FakeServices, stream: bool
) -> None:
    engine = FakeEngine(reply="<think>\nhm\n</think>\n\nParis")
    add_replica(services.router, "thinker", engine, text=ByteText(thinks=True))
    told = lines(
        await http.post("/api/chat", json={"model": "thinker", "messages": HI, "think": True, "stream": stream})
    )
    assert "".join(line["message"]["content"] for line in told) == "Paris"
    assert "".join(line["message"].get("thinking", "") for line in told) == "hm"
    shown = lines(await http.post("/api/show", json={"model": "thinker"}))[0]
    assert "thinking" in shown["capabilities"]


async def test_lines_hold_no_comments(services: FakeServices) -> None:
    services.engine.hold = asyncio.Event()
    app = PublicApp(services, StreamKeeper(comment_after_s=0.02))
    async with (
        http_server(app) as url,
        httpx.AsyncClient(base_url=url, headers={"x-api-key": services.key}, trust_env=False) as http,
    ):
        asking = asyncio.create_task(http.post("/api/chat", json={"model": MODEL, "messages": HI}))
        await asyncio.sleep(0.2)
        services.engine.hold.set()
        assert lines(await asking)[-1]["done"]
