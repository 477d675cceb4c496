"""WordPiece out of a GGUF header: the same ids as the folder's tokenizer.json gives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.errors import UnsupportedFormat
from engine.text.gguf_wordpiece import parts_from_gguf_wordpiece
from engine.text.hf_tokenizer import parts_from_folder
from engine.text.pipeline import TextPipeline

STORED = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "▁cat", "s", "▁the", "▁[", "▁]", "▁sep", "▁é", "▁e"]
IDS = {"cls": 2, "seperator": 3, "unknown": 1, "padding": 0}


def header(tokens: list[str] = STORED, **ids: int) -> dict[str, object]:
    stated = {f"tokenizer.ggml.{key}_token_id": value for key, value in (ids or IDS).items()}
    return {"tokenizer.ggml.model": "bert", "tokenizer.ggml.tokens": tokens, **stated}


def test_words_continue_and_begin_as_the_vocabulary_says():
    text = TextPipeline(parts_from_gguf_wordpiece(header(), "m"))
    assert text.encode_for_embedding("The cats") == [2, 6, 4, 5, 3]
    assert text.encode_for_embedding("É zzz") == [2, 11, 1, 3]
    assert text.encode_for_embedding("[SEP]") == [2, 7, 9, 8, 3]
    assert text.decode([2, 6, 4, 5, 3]) == "the cats"


def test_marks_are_found_by_their_text_where_the_header_names_none():
    parts = parts_from_gguf_wordpiece({k: v for k, v in header().items() if not k.endswith("_id")}, "m")
    assert (parts.prefix_ids, parts.suffix_ids, parts.unknown_token_id) == ((2,), (3,), 1)


@pytest.mark.parametrize(
    "stated",
    [
        {"tokenizer.ggml.tokens": STORED[4:]},
        header(cls=99),
        header(["[CLS]"] * 2, cls=0),
        {"tokenizer.ggml.tokens": None},
    ],
)
def test_header_that_contradicts_itself_is_refused(stated):
    with pytest.raises(UnsupportedFormat):
        parts_from_gguf_wordpiece(stated, "m")


def test_minilm_vocabulary_turned_round_gives_the_folders_ids(minilm_path: Path):
    vocabulary = json.loads((minilm_path / "tokenizer.json").read_bytes())["model"]["vocab"]
    stored = [""] * len(vocabulary)
    for word, token_id in vocabulary.items():
        plain = word.startswith("[") and word.endswith("]")
        stored[token_id] = word if plain else word[2:] if word.startswith("##") else f"▁{word}"
    ours = TextPipeline(parts_from_gguf_wordpiece(header(stored, cls=101, seperator=102, unknown=100, padding=0), "m"))
    theirs = TextPipeline(parts_from_folder(minilm_path, eos_token_ids=()))
    for text in (
        "Embeddings, naïvely!",
        "ünïcödé 東京 x²",
        "[CLS] [MASK] ##ing",
        "a" * 120,
        "",
        "antidisestablishment",
    ):
        assert ours.encode_for_embedding(text) == theirs.encode_for_embedding(text), text
