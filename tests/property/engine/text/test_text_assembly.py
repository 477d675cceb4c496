"""However a token stream is split, the text that comes out is the same."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.spec.gguf_header import read_gguf_header
from engine.text import IncrementalDetokenizer, StopMatcher, TextPipeline
from engine.text.gguf_tokenizer import parts_from_gguf

SPECIAL_TEXTS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<repo_name>", "<|im_", "start|>", "<", "|>", ">"]
NO_TOKEN = frozenset(b"\x04\x06\x13\x14\x16\x1d\xf1\xf2")  # bytes the small model's vocabulary cannot spell
spelled = st.characters(exclude_categories=("Cs",)).filter(lambda c: NO_TOKEN.isdisjoint(c.encode()))
texts = st.text(st.one_of(spelled, st.sampled_from("😀日é \n<|>")), max_size=60)


@cache
def pipeline_of(path) -> TextPipeline:
    return TextPipeline(parts_from_gguf(read_gguf_header(path).metadata, architecture="llama", source="test"))


@cache
def single_byte_ids(pipeline: TextPipeline) -> dict[int, int]:
    spelled = {pipeline.token_bytes(n): n for n in range(pipeline.vocab_size - 1, -1, -1)}
    return {data[0]: n for data, n in spelled.items() if len(data) == 1}


@pytest.fixture(scope="module")
def pipeline(smollm_path) -> TextPipeline:
    return pipeline_of(smollm_path)


def parts(items, cuts):
    """items cut at the given places."""
    places = sorted({min(cut, len(items)) for cut in cuts})
    return [items[a:b] for a, b in zip([0, *places], [*places, len(items)], strict=True)]


@settings(max_examples=200, deadline=None)
@given(text=texts, cuts=st.lists(st.integers(0, 200)), byte_tokens=st.booleans())
def test_detokenizer_any_partition_gives_the_text(pipeline, text, cuts, byte_tokens):
    if byte_tokens:  # every character split at every byte
        ids = [single_byte_ids(pipeline)[byte] for byte in text.encode()]
        assert pipeline.decode(ids) == text
    else:
        ids = pipeline.encode(text)
        assert pipeline.decode(ids) == text
    detokenizer = IncrementalDetokenizer(pipeline)
    joined = "".join(map(detokenizer.feed, parts(ids, cuts))) + detokenizer.flush()
    assert joined == pipeline.decode(ids)


@settings(max_examples=200, deadline=None)
@given(ids=st.lists(st.integers(0, 49151), max_size=40), cuts=st.lists(st.integers(0, 40)))
def test_detokenizer_random_ids_never_invent_a_replacement_character(pipeline, ids, cuts):
    detokenizer = IncrementalDetokenizer(pipeline)
    pieces = [detokenizer.feed(part) for part in parts(ids, cuts)] + [detokenizer.flush()]
    assert "".join(pieces) == pipeline.decode(ids)
    raw = b"".join(pipeline.token_bytes(n) for n in ids if n not in pipeline.special_token_ids)
    assert "".join(pieces).count("\ufffd") <= raw.count(b"\xef\xbf\xbd")


def first_complete(text: str, stops: list[str]) -> int:
    """Where the text must be cut: the slow and plain statement of the rule."""
    for end in range(1, len(text) + 1):
        endings = [stop for stop in stops if text[:end].endswith(stop)]
        if endings:
            return end - max(map(len, endings))
    return len(text)


@settings(max_examples=500, deadline=None)
@given(
    text=st.text("ab\né", max_size=30),
    stops=st.lists(st.text("ab\né", min_size=1, max_size=5), max_size=4),
    cuts=st.lists(st.integers(0, 30)),
)
def test_stop_matcher_any_partition_cuts_at_the_first_complete_stop(text, stops, cuts):
    matcher = StopMatcher(stops)
    shown, stopped = "", False
    for part in parts(text, cuts):
        emitted, stopped = matcher.feed(part)
        shown += emitted
        if not stopped:  # never more held than a stop could need
            assert len(matcher._held) < max(map(len, stops), default=1)
    shown += matcher.flush()
    assert shown == text[: first_complete(text, stops)]
    assert stopped == (shown != text or any(stop in text for stop in stops))


@settings(max_examples=300, deadline=None)
@given(
    contents=st.lists(
        st.lists(st.one_of(texts, st.sampled_from(SPECIAL_TEXTS)), max_size=6).map("".join), min_size=1, max_size=4
    )
)
def test_chat_content_never_adds_or_hides_a_control_token(pipeline, contents):
    messages = [{"role": "user", "content": content} for content in contents]
    ids = pipeline.render_chat(messages)
    innocent = pipeline.render_chat([{"role": "user", "content": "x"} for _ in contents])
    control = pipeline.special_token_ids
    assert [n for n in ids if n in control] == [n for n in innocent if n in control]
    text = pipeline.decode(ids, skip_special=False)
    assert all(f"<|im_start|>user\n{content}<|im_end|>\n" in text for content in contents)
