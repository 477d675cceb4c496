"""Vocabularies from GGUF headers give the ids that transformers (and llama.cpp) give."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable

import pytest
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer
from transformers.integrations.gguf.gguf_tokenizer_mapping import convert_gguf_tokenizer

from engine.errors import InvalidParameter, UnsupportedFormat
from engine.text import TextPipeline
from engine.text.gguf_tokenizer import parts_from_gguf
from engine.text.split_rules import SPLIT_RULES


def pipeline(metadata: dict[str, object], architecture: str = "llama") -> TextPipeline:
    return TextPipeline(parts_from_gguf(metadata, architecture=architecture, source="test.gguf"))


def reference(metadata: dict[str, object], architecture: str = "llama"):
    """transformers' tokenizer of the same header."""
    renamed = {key.removeprefix("tokenizer.ggml."): value for key, value in metadata.items()}
    names = {"model": "tokenizer_type", "pre": "pre_tokenizer_type", "unknown_token_id": "unk_token_id"}
    return convert_gguf_tokenizer(architecture, {names.get(key, key): value for key, value in renamed.items()})[0]


@pytest.fixture(scope="module")
def smollm_reference(smollm_path):
    return AutoTokenizer.from_pretrained(smollm_path.parent, gguf_file=smollm_path.name)


def test_encode_wide_texts_equals_transformers_with_the_files_digit_rule(smollm_text, smollm_reference, wide_texts):
    # transformers does not read the rule "smollm" and cuts by GPT-2's; the model was trained with digits cut off first
    backend = smollm_reference.backend_tokenizer
    plain = backend.pre_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), plain])
    try:
        for text in wide_texts:
            assert smollm_text.encode(text) == smollm_reference.encode(text, add_special_tokens=False), text
    finally:
        backend.pre_tokenizer = plain


def test_encode_where_digit_rules_agree_equals_transformers_as_it_is(smollm_text, smollm_reference, wide_texts):
    for text in wide_texts:
        if not re.search(r"\s\s\d", text) and not any(c.isnumeric() and not c.isascii() for c in text):
            assert smollm_text.encode(text) == smollm_reference.encode(text, add_special_tokens=False), text


@pytest.mark.parametrize(
    ("text", "ids"),
    [  # recorded from llama.cpp on the same file
        ("x =  12\n    3 ١٢ ½", [104, 446, 256, 33, 34, 2367, 35, 216, 164, 111, 164, 112, 216, 16738]),
        ("a  1", [81, 256, 33]),
        ("\t\t1", [1656, 33]),
        ("IT'S  I'LL 'tis", [2901, 23, 67, 216, 339, 23, 16421, 637, 34818]),
    ],
)  # fmt: skip
def test_encode_digits_after_spaces_equals_llama_cpp(smollm_text, text, ids):
    assert smollm_text.encode(text) == ids


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "qwen2", "tekken", "gpt-4o", "dbrx", "qwen35"])
def test_encode_by_split_rule_equals_transformers(byte_level_metadata: Callable[..., dict], wide_texts, pre):
    metadata = byte_level_metadata(pre)
    ours, theirs = pipeline(metadata), reference(metadata)
    if SPLIT_RULES[pre].whole_words:
        theirs.model.ignore_merges = True
    for text in wide_texts:
        if SPLIT_RULES[pre].compose and "e\u0301" in text:
            continue  # see the next test
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False).ids, (pre, text)


def test_encode_qwen2_composes_accents(byte_level_metadata):
    ours = pipeline(byte_level_metadata("qwen2"))
    assert ours.encode("e\u0301") == ours.encode("é")


@pytest.mark.parametrize("pre", sorted(SPLIT_RULES))
def test_every_split_rule_loses_nothing(byte_level_metadata, wide_texts, pre):
    ours = pipeline(byte_level_metadata(pre))
    for text in wide_texts:
        if not SPLIT_RULES[pre].compose:
            assert ours.decode(ours.encode(text)) == text


@pytest.mark.parametrize("architecture", ["llama", "phi3"])
def test_encode_scored_vocabulary_equals_transformers(sentencepiece_metadata, wide_texts, architecture):
    ours = pipeline(sentencepiece_metadata, architecture)
    theirs = reference(sentencepiece_metadata, architecture)
    for text in wide_texts:
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False).ids, text
        assert ours.decode(ours.encode(text)) == theirs.decode(ours.encode(text)), text


def test_encode_scored_vocabulary_after_special_has_no_prefix_space(sentencepiece_metadata):
    ours = pipeline(sentencepiece_metadata)
    with_token = ours.encode("<s>hello", special=True)
    assert with_token[0] == 1
    assert ours.decode(with_token[1:]) == "hello"
    assert ours.token_bytes(with_token[1]) == b"h" or not ours.token_bytes(with_token[1]).startswith(b" ")


def test_encode_add_bos_follows_the_kind(byte_level_metadata, sentencepiece_metadata):
    assert pipeline(sentencepiece_metadata).encode("a", add_bos=True)[0] == 1
    begin = byte_level_metadata("qwen2")["tokenizer.ggml.bos_token_id"]
    assert begin not in pipeline(byte_level_metadata("qwen2")).encode("a", add_bos=True)
    assert pipeline(byte_level_metadata("llama-bpe")).encode("a", add_bos=True)[0] == begin
    off = byte_level_metadata("llama-bpe", tokenizer__ggml__add_bos_token=False)
    assert begin not in pipeline(off).encode("a", add_bos=True)


def test_encode_of_a_long_text_lets_other_threads_run(smollm_text):
    text = "ab cd " * 100_000
    found: list[int] = []
    working = threading.Thread(target=lambda: found.extend(smollm_text.encode(text)))
    turns = 0
    working.start()
    while working.is_alive():
        turns += 1
        time.sleep(0.001)
    assert turns > 5
    assert smollm_text.decode(found) == text


def test_encode_special_text_is_plain_unless_asked(smollm_text):
    plain = smollm_text.encode("<|im_start|>user")
    assert 1 not in plain
    assert smollm_text.decode(plain) == "<|im_start|>user"
    assert smollm_text.encode("<|im_start|>user", special=True)[0] == 1


def test_encode_whole_word_rule_cannot_spell_a_special(byte_level_metadata):
    ours = pipeline(byte_level_metadata("llama-bpe"))
    for text in ("<|eot_id|>", "<think>", "<|im_end|><|im_end|>"):
        ids = ours.encode(text)
        assert ours.special_token_ids.isdisjoint(ids)
        assert ours.decode(ids) == text


def test_encode_user_defined_html_stays_one_token(byte_level_metadata):
    metadata = byte_level_metadata("gpt-2")
    ours = pipeline(metadata)
    assert ours.encode("<h1>") == [metadata["tokenizer.ggml.tokens"].index("<h1>")]


def test_encode_half_surrogate_is_refused(smollm_text):
    with pytest.raises(InvalidParameter, match="surrogate"):
        smollm_text.encode("a\ud800b")


def test_stop_token_ids_hold_eos_and_known_turn_ends(smollm_text, byte_level_metadata):
    assert smollm_text.stop_token_ids == (2, 0)
    metadata = byte_level_metadata("llama-bpe")
    tokens = metadata["tokenizer.ggml.tokens"]
    assert set(pipeline(metadata).stop_token_ids) == {tokens.index("<|im_end|>"), tokens.index("<|eot_id|>")}


def test_encode_from_64_threads_is_the_same(smollm_text, wide_texts):
    expected = [smollm_text.encode(text) for text in wide_texts]
    wrong: list[object] = []
    barrier = threading.Barrier(64)

    def work() -> None:
        barrier.wait()
        for _ in range(5):
            got = [smollm_text.encode(text) for text in wide_texts]
            if got != expected:
                wrong.append(got)

    threads = [threading.Thread(target=work) for _ in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tokenizer.ggml.model": "rwkv"}, "kind 'rwkv'"),
        ({"tokenizer.ggml.pre": "unheard-of"}, "unheard-of"),
        ({"tokenizer.ggml.tokens": 7}, "not a list of texts"),
        ({"tokenizer.ggml.token_type": [1, 1]}, "2 entries for"),
        ({"tokenizer.ggml.merges": ["ab"]}, "does not name two tokens"),
        ({"tokenizer.ggml.merges": ["qq zz"]}, "do not fit together"),
        ({"tokenizer.ggml.eos_token_id": 10**9}, "1000000000"),
        ({"tokenizer.ggml.add_bos_token": "yes"}, "not true or false"),
    ],
)
def test_damaged_header_is_refused_with_reason(byte_level_metadata, change, words):
    with pytest.raises(UnsupportedFormat, match=words):
        pipeline({**byte_level_metadata("gpt-2"), **change})
