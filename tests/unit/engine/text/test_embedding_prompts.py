"""What an embedding model's folder wants before its texts, and where its own tokens go."""

from __future__ import annotations

import json

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from engine.errors import InvalidParameter, UnsupportedFormat
from engine.spec import read_spec
from engine.text import load_text
from tests.fakes.encoders import VOCABULARY, saved_encoder

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "query", ":", "cat", "##s", "sep", "[", "]"]


@pytest.fixture
def folder(tmp_path):
    saved_encoder("bert", tmp_path)
    vocab = {word: i for i, word in enumerate(WORDS)} | {f"w{i}": i for i in range(len(WORDS), VOCABULARY)}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    described = json.loads(tokenizer.to_str())
    described["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    described["truncation"] = {"max_length": 4, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(described))
    return tmp_path


def write_prompts(folder, **stated):
    (folder / "config_sentence_transformers.json").write_text(json.dumps(stated))


def test_text_to_embed_stands_between_the_encoders_marks_uncut_and_cannot_hold_them(folder):
    text = load_text(read_spec(folder))
    assert text.encode_for_embedding("Cats cat cat") == [2, 6, 7, 6, 6, 3]
    assert text.encode_for_embedding("[SEP]") == [2, 9, 8, 10, 3]


def test_prompt_comes_first_by_name_by_default_or_not_at_all(folder):
    write_prompts(folder, prompts={"query": "query: ", "document": ""}, default_prompt_name=None)
    text = load_text(read_spec(folder))
    assert text.encode_for_embedding("cat", "query") == [2, 4, 5, 6, 3]
    assert text.encode_for_embedding("cat") == text.encode_for_embedding("cat", "document") == [2, 6, 3]
    with pytest.raises(InvalidParameter, match="no prompt 'other'"):
        text.encode_for_embedding("cat", "other")
    write_prompts(folder, prompts={"query": "query: "}, default_prompt_name="query")
    assert load_text(read_spec(folder)).encode_for_embedding("cat") == [2, 4, 5, 6, 3]


@pytest.mark.parametrize(
    "stated", [{"prompts": {"a": 1}}, {"prompts": {}, "default_prompt_name": "a"}, {"prompts": []}]
)
def test_prompts_that_cannot_be_followed_are_refused(folder, stated):
    write_prompts(folder, **stated)
    with pytest.raises(UnsupportedFormat):
        read_spec(folder)
