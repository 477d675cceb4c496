"""Random requests over all fields: streamed and whole answers agree, usage adds up, each ends exactly once."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from daemon.api.http import build_app
from tests.fakes.fake_services import MODEL, FakeServices, fake_services

FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.none() | st.floats(0, 2),
        "top_p": st.none() | st.floats(0.01, 1),
        "top_k": st.integers(-1, 50),
        "n": st.none() | st.integers(1, 4),
        "seed": st.none() | st.integers(-(2**63), 2**63 - 1),
        "max_tokens": st.none() | st.integers(1, 60),
        "max_completion_tokens": st.none() | st.integers(1, 60),
        "stop": st.none() | st.sampled_from(["there", "🙂", "Par", "zzz"]) | st.just(["Paris", "東"]),
        "logprobs": st.none() | st.booleans(),
        "presence_penalty": st.floats(-2, 2),
        "logit_bias": st.dictionaries(st.sampled_from(["1", "200"]), st.floats(-100, 100)),
        "ignore_eos": st.booleans(),
        "user": st.text(max_size=10),
        "metadata": st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
    },
)


async def both(services: FakeServices, fields: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    transport = httpx.ASGITransport(build_app(services))
    headers = {"x-api-key": services.key}
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 40, **fields}
    async with httpx.AsyncClient(transport=transport, base_url="http://bayard", headers=headers) as http:
        whole = await http.post("/v1/chat/completions", json=body)
        options = {"stream": True, "stream_options": {"include_usage": True}}
        streamed = await http.post("/v1/chat/completions", json=body | options)
    assert whole.status_code == streamed.status_code == 200, whole.text
    assert streamed.text.count("data: [DONE]") == 1
    events = [line.removeprefix("data: ") for line in streamed.text.split("\n\n") if line]
    return whole.json(), [json.loads(event) for event in events[:-1]]


def check(whole: dict[str, Any], chunks: list[dict[str, Any]]) -> None:
    *others, last = chunks
    assert whole["usage"] == last["usage"]
    usage = whole["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    for choice in whole["choices"]:
        mine = [chunk["choices"][0] for chunk in others if chunk["choices"][0]["index"] == choice["index"]]
        assert [part["delta"].get("role") for part in mine].count("assistant") == 1
        assert "".join(part["delta"].get("content") or "" for part in mine) == choice["message"]["content"]
        assert [part["finish_reason"] for part in mine if part["finish_reason"]] == [choice["finish_reason"]]
        assert mine[-1]["finish_reason"]
        entries = [entry for part in mine if part["logprobs"] for entry in part["logprobs"]["content"]]
        assert entries == (choice["logprobs"] or {"content": []})["content"]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(FIELDS, st.sampled_from(["Hello there, Paris!", "🙂東京 there", "", "Par"]), st.integers(1, 7))
def test_streamed_and_whole_answers_agree(tmp_path: Path, fields: dict[str, Any], reply: str, burst: int) -> None:
    asyncio.run(agree(tmp_path, fields, reply, burst))


async def agree(folder: Path, fields: dict[str, Any], reply: str, burst: int) -> None:
    async with fake_services(folder, key=KEYS.get(folder)) as services:
        KEYS[folder] = services.key
        services.engine.reply, services.engine.burst = reply, burst
        if not reply and fields.get("ignore_eos"):
            fields = {**fields, "ignore_eos": False}  # an engine with nothing to say would never end
        check(*await both(services, fields))
        assert not len(services.serving.live)
        assert not services.engine.open


KEYS: dict[Path, str] = {}  # of a folder that an earlier example made
