"""Text fixtures: the real small model's pipeline, tiny trained vocabularies, and a wide text."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from engine.spec.gguf_header import read_gguf_header
from engine.text import TextPipeline
from engine.text.gguf_tokenizer import parts_from_gguf

WIDE_TEXTS = [
    "",
    " ",
    "Hello, world!",
    "It's, I'LL, they've, 'tis; don't DON'T",
    "Voilà: déjà vu, naïve café, Ångström, e\u0301 (combining), ﬁ ligature",
    "日本語のテキストと中文混排，한국어도 있습니다。",
    "Привет, мир! שלום עולם مرحبا بالعالم १२३ नमस्ते ไทย",
    "😀 👩‍👩‍👧‍👦 🇫🇷 👍🏽 ☃️",
    "a  b   c    d\t\te\n\n\nf \n g\r\nh   ",
    "   leading and trailing   ",
    "x = 12345 + 67890.12; y=0x1F; 1,000,000 3.14159 ١٢٣ ½ ⅷ",
    "def f(x):\n    return {\n        'a': [1, 2, 3],  # comment\n    }\n",
    "<div class='a'>&nbsp;</div> // C++ std::vector<int> v{1,2}; a->b != c && d || !e",
    "http://example.org/path?q=1&r=%20#frag user@example.org",
    "\u200b\u00a0\u3000 odd spaces \u2028 line",
    "a" * 300,
    "— “quotes” ‘single’ … • № ™ €100 £5 ¥7",
    "\x00\x01\x7f control",
]


@pytest.fixture(scope="session")
def smollm_metadata(smollm_path: Path) -> dict[str, object]:
    return read_gguf_header(smollm_path).metadata


@pytest.fixture(scope="session")
def smollm_text(smollm_metadata: dict[str, object]) -> TextPipeline:
    return TextPipeline(parts_from_gguf(smollm_metadata, architecture="llama", source="smollm"))


@pytest.fixture(scope="session")
def wide_texts() -> list[str]:
    return WIDE_TEXTS


@pytest.fixture(scope="session")
def byte_level_metadata() -> Callable[..., dict[str, object]]:
    """GGUF metadata of a small byte-level vocabulary learned from the wide texts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, min_frequency=1, show_progress=False)
    tokenizer.train_from_iterator(WIDE_TEXTS * 3, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    learned = sorted(model["vocab"], key=model["vocab"].__getitem__)
    control = ["<|begin|>", "<|im_start|>", "<|im_end|>", "<|eot_id|>"]
    user = ["<think>", "</think>", "<h1>"]
    tokens = [*learned, *control, *user]
    types = [1] * len(learned) + [3] * len(control) + [4] * len(user)

    def make(pre: str, **more: object) -> dict[str, object]:
        return {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": pre,
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": types,
            "tokenizer.ggml.merges": [" ".join(pair) for pair in model["merges"]],
            "tokenizer.ggml.bos_token_id": tokens.index("<|begin|>"),
            "tokenizer.ggml.eos_token_id": tokens.index("<|im_end|>"),
            **{key.replace("__", "."): value for key, value in more.items()},
        }

    return make


@pytest.fixture(scope="session")
def sentencepiece_metadata() -> dict[str, object]:
    """GGUF metadata of a small scored vocabulary with byte tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=500, min_frequency=1, show_progress=False, limit_alphabet=90)
    tokenizer.train_from_iterator(WIDE_TEXTS * 3, trainer)
    vocabulary = tokenizer.get_vocab()
    learned = sorted(vocabulary, key=vocabulary.__getitem__)
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *learned, "[INST]"]
    types = [2, 3, 3, *[6] * 256, *[1] * len(learned), 4]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.scores": [0.0] * 259 + [-float(rank) for rank in range(len(learned))] + [0.0],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
