"""Constrained output and guesses with the small real model, in an engine and through a worker process."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import msgspec
import pytest

from engine.builder import build_engine
from engine.client import EngineClient
from engine.messages import FinishReason, Grammar, GrammarKind, Knobs, SamplingParams, Submit, WorkerConfig
from engine.spec import read_spec
from engine.text import ToolCall, forced_tool_grammar, load_text, output_parser

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "kind": {"enum": ["reader", "writer"]},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}
WEATHER = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 16}}, "required": ["city"]}
TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {**WEATHER, "additionalProperties": False}},
}
PRODUCT = [{"anyOf": [{"type": "object", "properties": {f"p{i}{j}": {}}} for j in range(6)]} for i in range(12)]


@pytest.fixture(scope="module")
def text(smollm_path):
    return load_text(read_spec(smollm_path))


def asked(text, question: str) -> list[int]:
    return text.render_chat([{"role": "user", "content": question}])


def config_of(path: Path, endpoint: str = "", **more: object) -> WorkerConfig:
    knobs = Knobs(max_running=8, token_budget=256, speculation_tokens=4)
    return WorkerConfig(
        "w", "smollm", str(path), endpoint, kv_tokens=4096, max_context_tokens=512, threads=2, knobs=knobs, **more
    )


def run(core, *submits: Submit) -> dict[str, tuple[list[int], FinishReason]]:
    out: dict[str, list[int]] = {submit.request_id: [] for submit in submits}
    ends = {}
    for submit in submits:
        core.add(submit)
    while core.has_work() or core.is_compiling:
        if not core.has_work():
            time.sleep(0.002)
            continue
        for delta in core.step().deltas:
            assert delta.error is None, delta.error
            out[delta.request_id] += delta.token_ids
            if delta.finish is not None:
                ends[delta.request_id] = delta.finish
    return {name: (tokens, ends[name]) for name, tokens in out.items()}


def test_schema_call_and_free_text_of_one_batch_with_guesses_equal_those_without(smollm_path, text):
    schema = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(PERSON))
    weather = asked(text, "What is the weather in Paris?")
    call = forced_tool_grammar(text, weather, [TOOL], parallel=False)
    stops = text.stop_token_ids

    def params(**more):
        return SamplingParams(**{"max_tokens": 64, "temperature": 0.0, "stop_token_ids": stops, **more})

    submits = [
        Submit("person", asked(text, "Describe a person as JSON."), params(grammar=schema)),
        Submit("drawn", asked(text, "Describe a person as JSON."), params(grammar=schema, temperature=0.8, seed=3)),
        Submit("call", weather, params(grammar=call)),
        Submit("free", asked(text, "Say this five times: the sea is blue."), params(max_tokens=40)),
        Submit("free drawn", asked(text, "Say this five times: red, red."), params(temperature=0.7, seed=1)),
    ]
    core = build_engine(config_of(smollm_path), lambda *progress: None).core
    core.scheduler.speculation.heeds_cost = False
    guessed = run(core, *submits)
    stats = core.stats()
    assert stats.draft_accepted_total > 20
    for name in ("person", "drawn"):
        jsonschema.validate(json.loads(text.decode(guessed[name][0])), PERSON)
    parser = output_parser(text, weather, tools=[TOOL])
    (found,) = parser.feed(text.decode(guessed["call"][0])) + parser.flush()
    assert isinstance(found, ToolCall)
    jsonschema.validate(json.loads(found.arguments), WEATHER)
    core.set_knobs(msgspec.structs.replace(core.scheduler.knobs, speculation_tokens=0))
    assert run(core, *submits) == guessed


def test_model_that_guesses_for_itself_is_always_right(smollm_path, text, tmp_path):
    second = tmp_path / "second.gguf"
    second.symlink_to(smollm_path)
    core = build_engine(config_of(smollm_path, draft_model_path=str(second)), lambda *progress: None).core
    core.scheduler.speculation.heeds_cost = False
    core.scheduler.speculation.drafters = core.scheduler.speculation.drafters[-1:]
    submit = Submit("a", asked(text, "What is the sea?"), SamplingParams(max_tokens=16, temperature=0.0))
    written = run(core, submit)["a"][0]
    stats = core.stats()
    assert stats.draft_accepted_total == stats.draft_tokens_total > 6
    core.set_knobs(msgspec.structs.replace(core.scheduler.knobs, speculation_tokens=0))
    assert run(core, submit)["a"][0] == written


@pytest.mark.skipif("BAYARD_LOSSLESS_PROMPTS" not in os.environ, reason="minutes long: set BAYARD_LOSSLESS_PROMPTS=200")
def test_many_prompts_with_guesses_equal_those_without(smollm_path, text):
    words = ["sea", "moon", "bread", "river", "clock", "mountain", "train", "garden", "violin", "winter"]
    forms = ["Write a list about the {}.", "Repeat ten times: the {} is blue.", "def {}(n):", "What is a {}?"]
    submits = [
        Submit(
            str(n),
            asked(text, forms[n % 4].format(words[n // 4 % 10]) + f" Style {n}."),
            SamplingParams(max_tokens=24, temperature=0.7 if n % 4 == 3 else 0.0, seed=n, ignore_eos=True),
        )
        for n in range(int(os.environ["BAYARD_LOSSLESS_PROMPTS"]))
    ]
    core = build_engine(config_of(smollm_path), lambda *progress: None).core
    core.scheduler.speculation.heeds_cost = False
    guessed = run(core, *submits)
    core.set_knobs(msgspec.structs.replace(core.scheduler.knobs, speculation_tokens=0))
    assert run(core, *submits) == guessed


async def test_worker_refuses_an_exponential_schema_soon_and_goes_on_meanwhile(smollm_path, text, tmp_path):
    endpoint = f"ipc://{tmp_path}/w.sock"
    file = tmp_path / "worker.json"
    file.write_bytes(msgspec.json.encode(config_of(smollm_path, endpoint)))
    client = EngineClient(endpoint)
    await client.start()
    process = subprocess.Popen([sys.executable, "-m", "engine.worker", str(file)])  # noqa: ASYNC220 - short, in a test
    try:
        await asyncio.wait_for(client.ready, 60)
        prompt = asked(text, "Describe a person as JSON.")

        async def answer(name: str, **params):
            sampling = SamplingParams(
                **{"max_tokens": 64, "temperature": 0.0, "stop_token_ids": text.stop_token_ids, **params}
            )
            began = time.monotonic()
            deltas = [delta async for delta in client.submit(Submit(name, prompt, sampling))]
            return deltas, time.monotonic() - began

        def grammar(value):
            return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(value))

        await answer("warm", grammar=grammar(PERSON))
        free = asyncio.create_task(answer("free", max_tokens=48, ignore_eos=True))
        (refused, took_s), (person, _) = await asyncio.gather(
            answer("bad", grammar=grammar({"allOf": PRODUCT})), answer("good", grammar=grammar(PERSON))
        )
        assert took_s < 2
        assert [(delta.token_ids, delta.error.code) for delta in refused] == [([], "invalid_parameter")]
        said = text.decode(token for delta in person for token in delta.token_ids)
        jsonschema.validate(json.loads(said), PERSON)
        deltas, _ = await free
        assert sum(len(delta.token_ids) for delta in deltas) == 48
    finally:
        process.kill()
        process.wait()
        await client.close()
