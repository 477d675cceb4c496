"""The public conformance cases through the official client, against the real daemon, worker and model."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import openai
import pytest

from daemon.api.grpc.gen import bayard_pb2 as pb
from daemon.api.grpc.gen import bayard_pb2_grpc as stubs
from tests.e2e.daemon.conftest import MODEL, Daemon

QUESTION: list[Any] = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]


@pytest.fixture(scope="module")
def served(prepared: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Daemon, str]]:
    """The real worker with the small model; all cases of this file share it."""
    with tempfile.TemporaryDirectory(prefix="bd-") as folder:
        shutil.copytree(prepared[0], folder, dirs_exist_ok=True)
        made = Daemon(Path(folder))
        try:
            made.start()
            made.until(lambda: made.admin("status")["models"] == [MODEL], 60.0)
            yield made, prepared[1]
        finally:
            made.stop()


@pytest.fixture
def client(served: tuple[Daemon, str]) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=served[0].url + "/v1", api_key=served[1], max_retries=0, timeout=60) as made:
        yield made


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    return client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, **fields)


def test_streamed_answer_equals_the_whole_one_and_names_paris(client: openai.OpenAI) -> None:
    whole = ask(client, max_tokens=24)
    chunks = list(ask(client, max_tokens=24, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert "Paris" in text
    assert text == whole.choices[0].message.content
    usage = chunks[-1].usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (
        whole.usage.prompt_tokens,
        whole.usage.completion_tokens,
    )


def test_four_tokens_are_four_tokens(client: openai.OpenAI) -> None:
    answer = ask(client, max_completion_tokens=4)
    assert (answer.choices[0].finish_reason, answer.usage.completion_tokens) == ("length", 4)


def test_seeded_choices_repeat_and_differ(client: openai.OpenAI) -> None:
    def draw() -> list[str]:
        answer = client.chat.completions.create(
            model=MODEL, messages=QUESTION, temperature=1.0, n=2, seed=7, max_tokens=12
        )
        return [choice.message.content or "" for choice in answer.choices]

    first = draw()
    assert first == draw()
    assert first[0] != first[1]


def test_stop_word_of_the_reference_cuts_before_it(client: openai.OpenAI) -> None:
    reference = ask(client, max_tokens=24).choices[0].message.content
    word = reference.split()[2]
    cut = ask(client, max_tokens=24, stop=word).choices[0]
    assert cut.message.content == reference[: reference.index(word)]
    assert cut.finish_reason == "stop"


def test_logprobs_spell_the_content_and_fall_from_the_best(client: openai.OpenAI) -> None:
    choice = ask(client, max_tokens=8, logprobs=True, top_logprobs=2).choices[0]
    entries = choice.logprobs.content
    assert b"".join(bytes(entry.bytes) for entry in entries).decode() == choice.message.content
    for entry in entries:
        best, second = entry.top_logprobs
        assert entry.logprob == best.logprob >= second.logprob


def test_text_completion_goes_on_where_the_prompt_ends(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt="The capital of France is", temperature=0, max_tokens=4)
    assert "Paris" in answer.choices[0].text
    assert answer.choices[0].text.startswith(" ")
    echoed = client.completions.create(
        model=MODEL, prompt="The capital of France is", temperature=0, max_tokens=4, echo=True
    )
    assert echoed.choices[0].text == "The capital of France is" + answer.choices[0].text


def test_grpc_gives_the_same_text_as_http(client: openai.OpenAI, served: tuple[Daemon, str]) -> None:
    daemon, key = served
    request = pb.ChatRequest(
        model=MODEL,
        messages=[pb.Message(role="user", content=QUESTION[0]["content"])],
        temperature=0,
        max_tokens=16,
    )
    with grpc.insecure_channel(daemon.admin("status")["grpc"]) as channel:
        deltas = list(stubs.InferenceStub(channel).Chat(request, metadata=(("authorization", f"Bearer {key}"),)))
    answer = ask(client, max_tokens=16)
    assert "".join(delta.text for delta in deltas) == answer.choices[0].message.content
    assert deltas[-1].finished.completion_tokens == answer.usage.completion_tokens


def test_client_that_leaves_frees_its_pages(client: openai.OpenAI, served: tuple[Daemon, str]) -> None:
    daemon, _ = served
    stream = ask(client, max_tokens=2000, stream=True, extra_body={"ignore_eos": True})
    for _ in range(3):
        next(stream)
    assert daemon.worker()["kv_pages_active"] > 0
    stream.close()
    daemon.until(lambda: daemon.worker()["kv_pages_active"] == 0 and daemon.worker()["requests_running"] == 0, 2.0)
    assert daemon.admin("requests")["items"] == []


def test_two_hundred_at_once_end_once_each_and_are_counted(client: openai.OpenAI, served: tuple[Daemon, str]) -> None:
    daemon, _ = served
    ends: list[str] = []

    def one(number: int) -> None:
        if number % 2:
            ends.append(ask(client, max_tokens=3).choices[0].finish_reason)
        else:
            reasons = [chunk.choices[0].finish_reason for chunk in ask(client, max_tokens=3, stream=True)]
            ends.extend(reason for reason in reasons if reason)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ends == ["length"] * 200
    daemon.until(lambda: daemon.worker()["kv_pages_active"] == 0, 2.0)


def test_operator_cancels_a_running_request(client: openai.OpenAI, served: tuple[Daemon, str]) -> None:
    daemon, _ = served
    stream = ask(client, max_tokens=2000, stream=True, extra_body={"ignore_eos": True})
    next(stream)
    (live,) = daemon.admin("requests")["items"]
    assert (live["tenant"], live["model"], live["state"]) == ("demo", MODEL, "decode")
    transport = httpx.HTTPTransport(uds=str(daemon.state_dir / "run" / "admin.sock"))
    with httpx.Client(transport=transport, base_url="http://bayard") as admin:
        assert admin.post(f"/admin/v1/requests/{live['id']}/cancel").status_code == 200
    with pytest.raises(openai.APIError, match="before it was complete"):
        list(stream)
    actions = [entry["action"] for entry in daemon.admin("audit")["items"]]
    assert "request.cancel" in actions


def test_revoked_key_is_refused_within_a_second(served: tuple[Daemon, str]) -> None:
    daemon, _ = served
    secret = daemon.command("keys", "create", "--tenant", "demo", "--name", "short-lived").stdout.strip()
    with httpx.Client(base_url=daemon.url, headers={"x-api-key": secret}) as http:
        assert http.get("/v1/models").status_code == 200
        daemon.command("keys", "revoke", secret[:12])
        revoked_mono = time.monotonic()
        assert http.get("/v1/models").status_code == 401
        assert time.monotonic() - revoked_mono < 1.0
    assert "revoked" in daemon.command("keys", "list").stdout
