"""C28 and C30, with OpenAI's client against the real encoder; and the other contracts beside it."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

from tests.e2e.conformance_other.conftest import MODEL, Served

TEXTS = ["A cat sits on the mat.", "Déjà vu, naïve façade.", "Stock prices fell sharply on Monday."]


@pytest.fixture(scope="module")
def client(served: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=served.url + "/v1", api_key=served.key, max_retries=0)


def cosine(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def test_c28_default_encoding_is_native_and_equals_floats(client: openai.OpenAI, encoder: str) -> None:
    default = client.embeddings.create(model=encoder, input=TEXTS[0])
    plain = client.embeddings.create(model=encoder, input=TEXTS[0], encoding_format="float")
    assert len(default.data[0].embedding) == 384
    assert default.data[0].embedding == pytest.approx(plain.data[0].embedding, abs=1e-6)
    assert cosine(default.data[0].embedding, default.data[0].embedding) == pytest.approx(1.0, abs=1e-4)


def test_c30_batch_equals_singles_in_order(served: Served, encoder: str) -> None:
    def embed(given: Any) -> list[list[float]]:
        answer = httpx.post(
            f"{served.url}/v1/embeddings", json={"model": encoder, "input": given}, headers={"x-api-key": served.key}
        )
        data = answer.raise_for_status().json()["data"]
        assert [one["index"] for one in data] == list(range(len(data)))
        return [one["embedding"] for one in data]

    batch = embed(TEXTS)
    for text, vector in zip(TEXTS, batch, strict=True):
        assert cosine(embed(text)[0], vector) > 0.999


def test_token_ids_of_tokenize_embed_as_their_text(served: Served, client: openai.OpenAI, encoder: str) -> None:
    body = {"model": encoder, "prompt": TEXTS[0]}
    tokens = httpx.post(f"{served.url}/tokenize", json=body, headers={"x-api-key": served.key}).json()["tokens"]
    by_ids = client.embeddings.create(model=encoder, input=[tokens]).data[0].embedding
    by_text = client.embeddings.create(model=encoder, input=TEXTS[0]).data[0].embedding
    assert cosine(by_ids, by_text) > 0.999


def test_rerank_puts_the_related_text_first(served: Served, encoder: str) -> None:
    body = {"model": encoder, "query": "Where is the kitten?", "documents": [TEXTS[2], TEXTS[0]]}
    answer = httpx.post(f"{served.url}/v1/rerank", json=body, headers={"x-api-key": served.key}).json()
    assert [result["index"] for result in answer["results"]] == [1, 0]


def test_generator_refuses_to_embed_and_encoder_to_write(client: openai.OpenAI, encoder: str) -> None:
    with pytest.raises(openai.BadRequestError, match="no embeddings"):
        client.embeddings.create(model=MODEL, input="x")
    with pytest.raises(openai.BadRequestError, match="embeddings"):
        client.chat.completions.create(model=encoder, messages=[{"role": "user", "content": "x"}])


def test_ollamas_client_talks_shapes_and_lists(served: Served) -> None:
    ollama = pytest.importorskip("ollama", reason="Ollama's client, of the extra `conformance`")
    client = ollama.Client(host=served.url, headers={"authorization": f"Bearer {served.key}"})
    hi, options = [{"role": "user", "content": "hi"}], {"temperature": 0, "num_predict": 8}
    whole = client.chat(MODEL, messages=hi, options=options)
    pieces = list(client.chat(MODEL, messages=hi, options=options, stream=True))
    assert "".join(piece.message.content for piece in pieces) == whole.message.content
    assert (pieces[-1].done_reason, pieces[-1].eval_count) == ("length", 8)
    schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"],
              "additionalProperties": False}  # fmt: skip
    shaped = client.generate(MODEL, prompt="Weather in Paris?", format=schema, options={"temperature": 0})
    assert list(json.loads(shaped.response)) == ["city"]
    assert MODEL in [model.model for model in client.list().models]
    assert "completion" in client.show(MODEL).capabilities
    with pytest.raises(ollama.ResponseError, match="no model"):
        client.chat("absent", messages=hi)


def test_ollama_chats_and_embeds(served: Served, encoder: str) -> None:
    with httpx.Client(base_url=served.url, headers={"authorization": f"Bearer {served.key}"}, timeout=30) as http:
        body = {"model": f"{MODEL}:latest", "messages": [{"role": "user", "content": "hi"}], "stream": False,
                "options": {"temperature": 0, "num_predict": 8}}  # fmt: skip
        told = http.post("/api/chat", json=body).raise_for_status().json()
        assert told["message"]["content"]
        assert told["eval_count"] == 8
        embedded = http.post("/api/embed", json={"model": encoder, "input": TEXTS}).raise_for_status().json()
        assert [len(vector) for vector in embedded["embeddings"]] == [384] * 3
        models = {model["name"]: model for model in http.get("/api/tags").json()["models"]}
        assert models[MODEL]["details"]["family"] == "llama"
        assert models[encoder]["details"]["family"] == "bert"
