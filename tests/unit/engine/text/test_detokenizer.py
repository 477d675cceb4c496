"""Detokenizing at the edges that no random test is sure to meet."""

from __future__ import annotations

import pytest

from engine.text import IncrementalDetokenizer, TextPipeline
from engine.text.gguf_tokenizer import parts_from_gguf


def byte_ids(pipeline: TextPipeline, data: bytes) -> list[int]:
    """One token a byte."""
    single = {pipeline.token_bytes(n): n for n in range(pipeline.vocab_size - 1, -1, -1)}
    return [single[bytes([byte])] for byte in data]


@pytest.fixture(scope="module")
def whole_bytes(byte_level_metadata) -> TextPipeline:
    """A vocabulary with a token for every byte (the small real one has none for 13 that UTF-8 never uses)."""
    return TextPipeline(parts_from_gguf(byte_level_metadata("gpt-2"), architecture="llama", source="test"))


def test_feed_byte_by_byte_emits_whole_characters_only(smollm_text):
    detokenizer = IncrementalDetokenizer(smollm_text)
    emitted = [detokenizer.feed([token_id]) for token_id in byte_ids(smollm_text, "é😀".encode())]
    assert emitted == ["", "é", "", "", "", "😀"]
    assert detokenizer.flush() == ""
    assert detokenizer.dropped_bytes == 0


def test_flush_drops_an_incomplete_character(smollm_text):
    detokenizer = IncrementalDetokenizer(smollm_text)
    assert detokenizer.feed(byte_ids(smollm_text, "a😀".encode()[:-1])) == "a"
    assert detokenizer.flush() == ""
    assert detokenizer.dropped_bytes == 3


def test_feed_invalid_bytes_gives_no_replacement_character(whole_bytes):
    detokenizer = IncrementalDetokenizer(whole_bytes)
    assert detokenizer.feed(byte_ids(whole_bytes, b"a\xff\xc3b\x80c")) + detokenizer.flush() == "abc"
    assert detokenizer.dropped_bytes == 3


def test_feed_replacement_character_of_the_model_is_kept(smollm_text):
    assert IncrementalDetokenizer(smollm_text).feed(smollm_text.encode("a\ufffdb")) == "a\ufffdb"


def test_feed_control_tokens_are_left_out_unless_wanted(smollm_text):
    ids = smollm_text.encode("<|im_start|>hi<|im_end|>", special=True)
    assert IncrementalDetokenizer(smollm_text).feed(ids) == "hi"
    assert IncrementalDetokenizer(smollm_text, skip_special=False).feed(ids) == "<|im_start|>hi<|im_end|>"


def test_feed_ids_outside_the_vocabulary_are_no_text(smollm_text):
    assert IncrementalDetokenizer(smollm_text).feed([-1, 10**9]) == ""


def test_feed_scored_vocabulary_strips_the_first_space_once(sentencepiece_metadata):
    pipeline = TextPipeline(parts_from_gguf(sentencepiece_metadata, architecture="llama", source="test"))
    ids = pipeline.encode("hello hello")
    detokenizer = IncrementalDetokenizer(pipeline)
    assert "".join(detokenizer.feed([n]) for n in ids) == "hello hello"
    assert IncrementalDetokenizer(pipeline, continuing=True).feed(ids) == " hello hello"


def test_token_bytes_of_every_token_join_to_the_text(smollm_text, wide_texts):
    for text in wide_texts:
        assert b"".join(map(smollm_text.token_bytes, smollm_text.encode(text))) == text.encode()
