"""What guesses and grammars cost and bring, on a real model: tokens a second with and without, one JSON line a case.

python -m bench.guesses --model SmolLM2-135M-Instruct.Q4_1.gguf --batches 1,8 --guesses 0,4,8
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass

import msgspec

from engine.builder import build_engine
from engine.core import EngineCore
from engine.messages import Grammar, GrammarKind, Knobs, SamplingParams, Submit, WorkerConfig
from engine.spec import read_spec
from engine.text import TextPipeline, load_text

SENTENCE = "The quick brown fox jumps over the lazy dog while seven wizards brew a potion of moonlight and silver. "
PEOPLE = {
    "type": "array",
    "minItems": 50,
    "items": {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "maximum": 99}},
        "required": ["name", "age"],
        "additionalProperties": False,
    },
}
CASES: dict[str, tuple[str, Grammar | None]] = {
    "repeat": (f"Repeat this text exactly, three times: {SENTENCE * 2}", None),
    "free": ("Write a story about a lighthouse keeper and her cat.", None),
    "json": ("List people with name and age as JSON.", Grammar(GrammarKind.JSON_SCHEMA, json.dumps(PEOPLE))),
}


@dataclass(frozen=True, slots=True)
class Figure:
    """One run. step_ms is the mean over its steps."""

    case: str
    batch: int
    guesses: int  # the knob
    tokens_s: float
    step_ms: float
    guessed: int
    right: int


def measure(core: EngineCore, text: TextPipeline, case: str, batch: int, guesses: int, tokens: int) -> Figure:
    """Blocks: for as long as the answers take."""
    question, grammar = CASES[case]
    core.set_knobs(msgspec.structs.replace(core.scheduler.knobs, speculation_tokens=guesses))
    before = core.stats()
    began = time.perf_counter()
    for n in range(batch):
        prompt = text.render_chat([{"role": "user", "content": f"{question} Number {n}."}])
        sampling = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True, grammar=grammar)
        core.add(Submit(f"{case}{n}", prompt, sampling))
    produced = 0
    while core.has_work() or core.is_compiling:
        if core.has_work():
            produced += sum(len(delta.token_ids) for delta in core.step().deltas)
    seconds = time.perf_counter() - began
    after = core.stats()
    return Figure(
        case,
        batch,
        guesses,
        round(produced / seconds, 1),
        round(1000 * seconds / max(1, after.step - before.step), 3),
        after.draft_tokens_total - before.draft_tokens_total,
        after.draft_accepted_total - before.draft_accepted_total,
    )


def main(words: list[str]) -> int:
    def numbers(text: str) -> list[int]:
        return [int(word) for word in text.split(",")]

    parser = argparse.ArgumentParser(prog="python -m bench.guesses", description=__doc__)
    parser.add_argument("--model", required=True, help="a GGUF file or Hugging Face folder with its tokenizer")
    parser.add_argument("--draft-model", default="", help="a second model that guesses, or the model's own path")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", default=0, type=int)
    parser.add_argument("--batches", default=[1, 8], type=numbers)
    parser.add_argument("--guesses", default=[0, 4], type=numbers)
    parser.add_argument("--tokens", default=160, type=int, help="of each answer")
    parser.add_argument("--always", action="store_true", help="guess whether it pays or not")
    arguments = parser.parse_args(words)
    config = WorkerConfig(
        "bench", "bench", arguments.model, "", device=arguments.device, threads=arguments.threads,
        max_context_tokens=2048, kv_tokens=2048 * max(arguments.batches), draft_model_path=arguments.draft_model,
        knobs=Knobs(max_running=max(arguments.batches), prefix_cache=False),
    )  # fmt: skip
    core = build_engine(config, lambda stage, done, total: None).core
    if not isinstance(core, EngineCore):
        parser.error("an encoder writes nothing")
    core.scheduler.speculation.heeds_cost = not arguments.always
    text = load_text(read_spec(arguments.model))
    for case in CASES:
        for batch in arguments.batches:
            measure(core, text, case, batch, 0, 8)  # graphs, vocabulary and caches are there afterwards
            for guesses in arguments.guesses:
                figure = measure(core, text, case, batch, guesses, arguments.tokens)
                print(json.dumps({field: getattr(figure, field) for field in Figure.__slots__}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
