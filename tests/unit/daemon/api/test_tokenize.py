"""/tokenize and /detokenize, and how they agree with what a request costs."""

from __future__ import annotations

import threading
from typing import Any

import httpx
import openai
import pytest

from daemon.tenants.limits import TenantLimits
from tests.fakes.fake_services import MODEL, FakeServices

HI = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "f"}}


async def test_text_goes_round(http: httpx.AsyncClient) -> None:
    for text in ("Crème brûlée, Łódź", "東京🙂\0", ""):
        told = (await http.post("/tokenize", json={"model": MODEL, "prompt": text, "add_special_tokens": False})).json()
        assert told["count"] == len(told["tokens"]) == len(text.encode())
        assert told["max_model_len"] == 2048
        back = (await http.post("/detokenize", json={"model": MODEL, "tokens": told["tokens"]})).json()
        assert back == {"prompt": text}


async def test_content_is_prompt_and_strings_are_told(http: httpx.AsyncClient) -> None:
    body = {"model": MODEL, "content": "hi", "return_token_strs": True}
    assert (await http.post("/tokenize", json=body)).json()["token_strs"] == ["h", "i"]


async def test_strings_of_a_long_text_are_not_made_on_the_loop(
    services: FakeServices, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    text: Any = services.router.replica_for(MODEL).text
    threads: set[int] = set()
    spell = type(text).token_bytes

    def noted(self: Any, token_id: int) -> bytes:
        threads.add(threading.get_ident())
        return bytes(spell(self, token_id))

    monkeypatch.setattr(type(text), "token_bytes", noted)
    body = {"model": MODEL, "prompt": "ab" * 5000, "return_token_strs": True}
    assert len((await http.post("/tokenize", json=body)).json()["token_strs"]) == 10_000
    assert threads
    assert threading.get_ident() not in threads


@pytest.mark.parametrize("fields", [{}, {"tools": [TOOL]}, {"continue_final_message": True}])
async def test_conversation_counts_as_its_request_does(http: httpx.AsyncClient, fields: dict[str, Any]) -> None:
    messages = [*HI, {"role": "assistant", "content": "I"}] if "continue_final_message" in fields else HI
    body = {"model": MODEL, "messages": messages, **fields}
    told = (await http.post("/tokenize", json=body)).json()
    usage = (await http.post("/v1/chat/completions", json=body)).json()["usage"]
    assert told["count"] == usage["prompt_tokens"]


async def test_responses_count_as_their_request_does(client: openai.AsyncOpenAI) -> None:
    told = await client.responses.input_tokens.count(model=MODEL, input="hi", instructions="Be brief.")
    made = await client.responses.create(model=MODEL, input="hi", instructions="Be brief.")
    assert made.usage is not None
    assert told.input_tokens == made.usage.input_tokens


@pytest.mark.parametrize(
    ("path", "fields", "status"),
    [
        ("/tokenize", {}, 400),
        ("/tokenize", {"prompt": "a", "messages": HI}, 400),
        ("/tokenize", {"prompt": "a", "more": 1}, 400),
        ("/tokenize", {"prompt": "a", "model": "none"}, 404),
        ("/detokenize", {"tokens": [300]}, 400),
        ("/detokenize", {"tokens": [-1]}, 400),
        ("/detokenize", {"tokens": ["a"]}, 400),
        ("/detokenize", {"tokens": [], "model": "none"}, 404),
    ],
)
async def test_wrong_body_is_refused(http: httpx.AsyncClient, path: str, fields: dict[str, Any], status: int) -> None:
    assert (await http.post(path, json={"model": MODEL, **fields})).status_code == status


async def test_model_that_a_key_may_not_use_is_not_tokenized_for_it(base_url: str, services: FakeServices) -> None:
    key = await services.new_key("none", TenantLimits(models=frozenset()))
    async with httpx.AsyncClient(base_url=base_url, headers={"x-api-key": key}, trust_env=False) as http:
        for path, body in (("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": []})):
            assert (await http.post(path, json={"model": MODEL, **body})).status_code == 403
