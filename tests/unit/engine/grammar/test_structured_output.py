"""Structured output in an engine: what comes out is what was asked for, whatever the model would rather say."""

from __future__ import annotations

import json
import re
import time

import jsonschema
import pytest

from engine.core import EngineCore
from engine.messages import FinishReason, Grammar, GrammarKind, Knobs, SamplingParams, Submit, TokenDelta
from engine.text import TextPipeline
from tests.fakes.engine_models import GraphDevice, attention, core_of, spec_of
from tests.fakes.engine_runs import preempt_often, tokens
from tests.fakes.schemas import SCHEMAS
from tests.fakes.tiny_text import NoiseModel, tiny_compiler, tiny_text

TEXT = tiny_text()
VOCAB = TEXT.vocab_size + 5  # models pad their vocabulary
SPEC = spec_of(attention(), vocab=VOCAB, context=2048)
FORMATS = jsonschema.FormatChecker(["ipv4", "uuid"])  # dates are kept to their form: 0000-02-31 has it
MODES = {"plain": {}, "overlap": {"overlap": True}, "graphs": {"overlap": True, "device": GraphDevice}}


def core_in(mode: str = "plain", **more) -> EngineCore:
    options = dict(MODES[mode])
    device = options.pop("device", None)
    knobs = more.pop("knobs", Knobs(max_running=16, token_budget=64, prefill_chunk=16))
    return core_of(
        SPEC,
        large_pages=more.pop("large_pages", 900),
        model=more.pop("model", None) or NoiseModel(TEXT, VOCAB),
        device=device() if device else None,
        knobs=knobs,
        max_context=2048,
        grammars=tiny_compiler(TEXT, VOCAB),
        **options,
        **more,
    )


def drive(core: EngineCore, *submits: Submit) -> dict[str, list[TokenDelta]]:
    seen: dict[str, list[TokenDelta]] = {submit.request_id: [] for submit in submits}
    for submit in submits:
        core.add(submit)
    ends_mono = time.monotonic() + 60
    while core.has_work() or core.is_compiling:
        assert time.monotonic() < ends_mono
        if not core.has_work():
            time.sleep(0.002)
            continue
        for delta in core.step().deltas:
            seen.setdefault(delta.request_id, []).append(delta)
        core.scheduler.check_integrity()
    return seen


def asked(grammar: Grammar, **more) -> SamplingParams:
    options = {"max_tokens": 900, "temperature": 0.0, "stop_token_ids": TEXT.stop_token_ids, **more}
    return SamplingParams(grammar=grammar, **options)


def schema(value: object) -> Grammar:
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(value))


def said(deltas: list[TokenDelta], text: TextPipeline = TEXT) -> str:
    return text.decode(tokens(deltas))


@pytest.mark.parametrize("mode", MODES)
def test_fifty_schemas_always_validate(mode):
    assert len(SCHEMAS) == 50
    submits = [
        Submit(f"{n}.{kind}", [65, 66 + n % 7], asked(schema(value), **params))
        for n, value in enumerate(SCHEMAS)
        for kind, params in {"greedy": {}, "drawn": {"temperature": 1.0, "seed": n, "top_p": 0.95}}.items()
    ]
    core = core_in(mode)
    seen = drive(core, *submits)
    for name, deltas in seen.items():
        value = SCHEMAS[int(name.split(".")[0])]
        assert deltas[-1].finish is FinishReason.STOP, (name, deltas[-1], said(deltas)[:200])
        written = json.loads(said(deltas))
        jsonschema.validate(written, value, format_checker=FORMATS)
    assert core.kv.num_active == 0


CHOICES = ["yes", "no", "perhaps é", 'a "quoted" \\ one\n']
KINDS = {
    "choice": (Grammar(GrammarKind.CHOICE, json.dumps(CHOICES)), lambda text: text in CHOICES),
    "regex": (
        Grammar(GrammarKind.REGEX, r"[a-c]{2,4}/[0-9]+x"),
        lambda text: re.fullmatch(r"[a-c]{2,4}/[0-9]+x", text) is not None,
    ),
    "object": (Grammar(GrammarKind.JSON_OBJECT), lambda text: isinstance(json.loads(text), dict)),
    "lark": (Grammar(GrammarKind.LARK, 'start: "<" /[a-z]{1,3}/ ">"'), lambda text: re.fullmatch("<[a-z]{1,3}>", text)),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_other_kinds_give_what_they_ask_for(mode, kind):
    grammar, fits = KINDS[kind]
    submits = [Submit(f"r{n}", [n + 3], asked(grammar, temperature=0.8, seed=n)) for n in range(6)]
    for deltas in drive(core_in(mode), *submits).values():
        assert deltas[-1].finish is FinishReason.STOP
        assert fits(said(deltas)), said(deltas)


REFUSED = {
    "no json": Grammar(GrammarKind.JSON_SCHEMA, "{nope"),
    "no schema": Grammar(GrammarKind.JSON_SCHEMA, "[1]"),
    "unknown keyword": schema({"type": "array", "uniqueItems": True}),
    "not": schema({"not": {"type": "string"}}),
    "remote": schema({"$ref": "http://example.org/schema"}),
    "dangling": schema({"$ref": "#/$defs/none"}),
    "look-around": schema({"type": "string", "pattern": "^(?=a)b$"}),
    "bad regex": Grammar(GrammarKind.REGEX, "(a|b"),
    "many copies": Grammar(GrammarKind.REGEX, "((a{1,900}){1,900}){1,900}"),
    "product": schema({"allOf": [{"anyOf": [{"type": "object", "properties": {f"p{i}{j}": {"type": "string"}}} for j in range(6)]} for i in range(12)]}),  # noqa: E501
    "intersection": schema({"allOf": [{"type": "string", "pattern": f"(a|b)*a(a|b){{{i}}}"} for i in range(8, 20)]}),
    "deep": schema(json.loads('{"items":' * 60 + "{}" + "}" * 60)),
    "long": schema({"enum": ["x" * 70_000]}),
    "empty": schema({"type": "string", "enum": []}),
    "no choice": Grammar(GrammarKind.CHOICE, "[]"),
    "lark": Grammar(GrammarKind.LARK, "start: nowhere"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_hostile_or_malformed_grammar_is_refused_while_others_go_on(name):
    core = core_in()
    core.add(Submit("other", [70], SamplingParams(max_tokens=1500, temperature=0.0)))
    for _ in range(3):
        core.step()
    began = time.monotonic()
    core.add(Submit("bad", [65], asked(REFUSED[name])))
    other_tokens, ended = 0, None
    while ended is None:
        for delta in core.step().deltas:
            if delta.request_id == "bad":
                ended = delta
            other_tokens += len(delta.token_ids)
    assert time.monotonic() - began < 2.5
    assert other_tokens > 0
    assert ended.token_ids == []
    assert ended.finish is FinishReason.ERROR
    assert ended.error.code == "invalid_parameter"
    core.abort("other")
    drive(core)
    assert core.kv.num_active == 0


def test_without_a_compiler_a_grammar_is_refused():
    core = core_of(SPEC, model=NoiseModel(TEXT, VOCAB))
    deltas = drive(core, Submit("a", [65], asked(schema({}))))["a"]
    assert deltas[0].error.code == "invalid_parameter"


def test_abort_while_compiling_ends_it_once_and_frees_the_id():
    core = core_in()
    core.add(Submit("a", [65], asked(REFUSED["intersection"])))
    core.add(Submit("a", [65], asked(schema({}))))
    assert core.stats().waiting == 1
    core.abort("a")
    report = core.step()
    assert [delta.finish for delta in report.deltas] == [FinishReason.ERROR, FinishReason.ABORT]
    assert not core.is_compiling
    deltas = drive(core, Submit("a", [65], asked(schema({"const": "ab"}))))["a"]
    assert said(deltas) == '"ab"'


def test_deadline_counts_while_compiling():
    core = core_in()
    doubled = "".join(f"T{n}: T{n + 1} T{n + 1}\n" for n in range(60))
    slow = Grammar(GrammarKind.LARK, f'start: T0\n{doubled}T60: "a"\n')
    deltas = drive(core, Submit("a", [65], asked(slow), deadline_s=0.05))["a"]
    assert deltas[0].error.code == "deadline_exceeded"
    assert not core.is_compiling


def test_prompt_too_long_for_the_context_is_refused_after_compiling():
    core = core_in()
    deltas = drive(core, Submit("a", [65] * 3000, asked(schema({}))))["a"]
    assert deltas[0].error.code == "context_length_exceeded"
    assert not core.is_compiling


@pytest.mark.parametrize("mode", MODES)
def test_constrained_tokens_survive_preemption_and_company(mode):
    submits = [Submit(f"r{n}", [65 + n, 3, n], asked(schema(SCHEMAS[n]))) for n in range(0, 20, 2)]
    submits += [Submit(f"free{n}", [70 + n] * 9, SamplingParams(max_tokens=40, temperature=0.0)) for n in range(4)]
    alone = {s.request_id: tokens(drive(core_in(), s)[s.request_id]) for s in submits}
    core = core_in(mode)
    preempt_often(core)
    together = {name: tokens(deltas) for name, deltas in drive(core, *submits).items()}
    assert core.scheduler.preemptions_total > 0
    assert together == alone


@pytest.mark.parametrize("mode", MODES)
def test_penalties_bias_and_log_probabilities_stay_within_the_grammar(mode):
    grammar = schema({"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 3, "maxItems": 3})
    forbidden = dict.fromkeys(TEXT.encode("xyz!"), 100.0)
    params = {
        "bias": {"logit_bias": forbidden},
        "penalty": {"presence_penalty": 2.0, "repetition_penalty": 1.5, "temperature": 0.7, "seed": 1},
        "logprobs": {"top_logprobs": 3},
        "drawn": {"top_logprobs": 2, "temperature": 1.5, "seed": 3, "top_k": 4},
    }
    submits = [Submit(name, [80], asked(grammar, **more)) for name, more in params.items()]
    seen = drive(core_in(mode), *submits)
    for deltas in seen.values():
        assert len(json.loads(said(deltas))) == 3
    entries = [entry for delta in seen["logprobs"] for entry in delta.logprobs or []]
    assert [entry.token_id for entry in entries] == tokens(seen["logprobs"])
    # They are the model's own: what it would have said leads, not what it was made to say.
    assert any(entry.top[0][0] != entry.token_id for entry in entries)
    assert all(len(entry.top) == 3 for entry in entries)


@pytest.mark.parametrize("mode", MODES)
def test_stop_tokens_come_only_where_the_grammar_may_end(mode):
    stop = TEXT.stop_token_ids[0]
    eager = asked(schema({"type": "integer"}), logit_bias={stop: 50.0})
    # As soon as a digit is there the end may come, and min_tokens holds it back.
    seen = drive(core_in(mode), Submit("a", [65], eager), Submit("b", [65], asked(
        schema({"type": "integer"}), logit_bias={stop: 50.0}, min_tokens=6, temperature=1.0, seed=2)))  # fmt: skip
    assert re.fullmatch(r"-?\d", said(seen["a"]))
    assert len(tokens(seen["b"])) >= 6
    assert seen["b"][-1].finish is FinishReason.STOP
    ended = drive(core_in(mode), Submit("a", [65], asked(schema({"const": 1}), min_tokens=50)))["a"]
    assert (said(ended), ended[-1].finish) == ("1", FinishReason.STOP)
    ignoring = drive(core_in(mode), Submit("a", [65], asked(schema({"enum": ["ab"]}), ignore_eos=True)))["a"]
    assert (said(ignoring), ignoring[-1].finish) == ('"ab"', FinishReason.STOP)


def test_special_tokens_are_never_taken_for_the_text_they_are_spelled_with():
    marks = list(TEXT.guarded_token_ids)
    wanted = ["<|im_end|>", "<tool_call>", "x</think>y"]
    submits = [
        Submit(f"r{n}", [65], asked(schema({"const": text}), logit_bias=dict.fromkeys(marks, 30.0)))
        for n, text in enumerate(wanted)
    ]
    seen = drive(core_in(), *submits)
    assert [json.loads(said(seen[f"r{n}"])) for n in range(3)] == wanted
    assert all(not set(tokens(deltas)) & set(marks) for deltas in seen.values())


@pytest.mark.parametrize("guesses", [0, 4])
@pytest.mark.parametrize("mode", MODES)
def test_numbers_that_are_none_end_that_request_alone(mode, guesses):
    quote = TEXT.encode('"')[0]
    model = NoiseModel(TEXT, VOCAB, broken_ids=frozenset({quote, *TEXT.encode("ab")}))
    core = core_in(mode, model=model, knobs=Knobs(max_running=16, prefill_chunk=16, speculation_tokens=guesses))
    core.scheduler.speculation.heeds_cost = False
    submits = [Submit("bad", [65], asked(schema({"const": "a"}))), Submit("good", [65], asked(schema({"const": 1234})))]
    seen = drive(core, *submits)
    assert seen["bad"][-1].error.code == "numerical_fault"
    assert said(seen["good"]) == "1234"


@pytest.mark.parametrize("mode", MODES)
def test_choices_of_one_prompt_share_it_and_each_keeps_to_its_grammar(mode):
    """n > 1 with everything else at once: bias, min_tokens, guesses."""
    value = {"type": "array", "items": {"enum": ["red", "blue"]}, "minItems": 2, "maxItems": 6}
    prompt = [65 + n % 20 for n in range(50)]
    submits = [
        Submit(
            f"r{n}",
            prompt,
            asked(schema(value), temperature=1.0, seed=n, min_tokens=12, logit_bias={TEXT.encode(",")[0]: 2.0}),
            prompt_group="g",
        )
        for n in range(5)
    ]
    outputs = []
    for guesses in (0, 4):
        core = core_in(mode, knobs=Knobs(max_running=8, token_budget=64, prefill_chunk=16, speculation_tokens=guesses))
        core.scheduler.speculation.heeds_cost = False
        seen = drive(core, *submits)
        for deltas in seen.values():
            assert deltas[-1].finish is FinishReason.STOP
            jsonschema.validate(json.loads(said(deltas)), value)
            assert len(tokens(deltas)) >= 11
        assert core.stats().cached_tokens_total >= 4 * 48
        outputs.append({name: tokens(deltas) for name, deltas in seen.items()})
    assert outputs[0] == outputs[1]
    assert len({tuple(ids) for ids in outputs[0].values()}) > 1


@pytest.mark.parametrize("mode", MODES)
def test_grammar_that_fails_in_mid_text_ends_its_request_alone(mode):
    core = core_in(mode)
    core.add(Submit("bad", [65], asked(schema({"const": "a long enough text"}))))
    core.add(Submit("good", [65], asked(schema({"const": "another text"}))))
    seen: dict[str, list[TokenDelta]] = {"bad": [], "good": []}
    while core.has_work() or core.is_compiling:
        for delta in core.step().deltas if core.has_work() else ():
            seen[delta.request_id].append(delta)
        request = core.scheduler.requests.get("bad")
        if request is not None and request.num_sampled == 4:
            request.grammar._fail("The grammar is at its wits' end.")
    assert (seen["bad"][-1].finish, seen["bad"][-1].error.code) == (FinishReason.ERROR, "invalid_parameter")
    assert said(seen["good"]) == '"another text"'
    assert core.kv.num_active == 0


def test_compiled_grammars_are_kept_and_begin_anew():
    core = core_in()
    seen = drive(core, *[Submit(f"r{n}", [65], asked(schema({"enum": ["ab", "cd"]}), seed=n)) for n in range(5)])
    assert {json.loads(said(deltas)) for deltas in seen.values()} <= {"ab", "cd"}


LONG = 5_000


def chain(letter: str) -> Grammar:
    rules = "".join(f"{letter}{n}:{letter}{n + 1}\n" for n in range(LONG))
    return Grammar(GrammarKind.LARK, f'start: {letter}0\n{rules}{letter}{LONG}:"x"\n')


CHAINS = {
    "rules": chain("a"),
    "terminals": chain("A"),
    "references": schema({
        "$defs": {f"a{n}": {"$ref": f"#/$defs/a{n + 1}"} for n in range(1400)} | {"a1400": {"const": 1}},
        "$ref": "#/$defs/a0",
    }),
}  # fmt: skip


@pytest.mark.parametrize("name", CHAINS)
def test_long_chains_of_rules_do_not_take_the_process_down(name):
    """The library follows them by recursion: a thread's usual stack would not do."""
    deltas = drive(core_in(), Submit("a", [65], asked(CHAINS[name])))["a"]
    assert said(deltas) == ("1" if name == "references" else "x")
