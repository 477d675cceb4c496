"""A vocabulary of single bytes and a few longer tokens, and a model that talks noise in it."""

from __future__ import annotations

from functools import cache

import torch

from engine.batch import ForwardBatch
from engine.grammar import GrammarCompiler
from engine.text import TextPipeline
from engine.text.gguf_tokenizer import parts_from_gguf
from engine.text.spelling import byte_alphabet

LONGER = [
    '{"',
    '":',
    '",',
    '"}',
    "},",
    "[{",
    "}]",
    "true",
    "false",
    "null",
    "00",
    "ab",
    "abc",
    " a",
    "\n ",
    "é",
    "日本",
]
SPECIALS = [
    "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<think>", "</think>", "<|start|>", "<|end|>",
    "<|message|>", "<|channel|>", "<|constrain|>", "<|call|>", "<|return|>", "[TOOL_CALLS]", "[ARGS]",
    "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>",
]  # fmt: skip


@cache
def tiny_text(template: str = "", *, plain_marks: bool = False) -> TextPipeline:
    """plain_marks: only the ends of a turn are tokens of their own."""
    alphabet = byte_alphabet()
    spelled = ["".join(alphabet[byte] for byte in text.encode()) for text in LONGER]
    base = [alphabet[byte] for byte in range(256)]
    tokens = list(dict.fromkeys([*base, *_prefixes(spelled)]))
    specials = SPECIALS[:2] if plain_marks else SPECIALS
    merges = [f"{token[:-1]} {token[-1]}" for token in tokens if len(token) > 1]
    types = [1] * len(tokens) + [3] * len(specials)
    tokens = [*tokens, *specials]
    metadata: dict[str, object] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.eos_token_id": tokens.index("<|im_end|>"),
    }
    if template:
        metadata["tokenizer.chat_template"] = template
    return TextPipeline(parts_from_gguf(metadata, architecture="llama", source="tiny"))


def _prefixes(words: list[str]) -> list[str]:
    """Every longer token is made by adding one character at a time."""
    return sorted({word[:n] for word in words for n in range(2, len(word) + 1)}, key=len)


class NoiseModel:
    """Any token may come after any other; what ends a JSON text is somewhat likelier. Same tokens, same logits."""

    def __init__(
        self, text: TextPipeline, vocab: int, *, broken_ids: frozenset[int] = frozenset(), device: str = "cpu"
    ) -> None:
        generator = torch.Generator().manual_seed(7)
        self._table = torch.randn(64, vocab, generator=generator) * 2
        self._ends = torch.zeros(vocab)
        for piece, weight in (('"', 5.0), ("}", 5.0), ("]", 4.0), ('"}', 5.0), ("}]", 4.0), (",", 1.0), ('",', 1.0)):
            ids = text.encode(piece)
            if len(ids) == 1:
                self._ends[ids[0]] = weight
        for token in text.stop_token_ids:
            self._ends[token] = 4.0
        for mark in ("</think>", "<|end|>"):  # or thinking goes on until the tokens are spent
            closing = text.special_id(mark)
            if closing is not None:
                self._ends[closing] = 5.0
        self._table, self._ends = self._table.to(device), self._ends.to(device)
        self._angles = torch.arange(vocab, device=device) * 0.37
        self._broken = broken_ids

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        rows = batch.logit_rows.long()
        ids, places = batch.token_ids[rows].long(), batch.positions[rows].long()
        logits = self._table[(ids * 31 + places * 7) % 64] + self._ends
        logits = logits + torch.sin((ids * 13 + places).unsqueeze(1) * self._angles)
        for row, token in enumerate(ids.tolist() if self._broken else ()):
            if token in self._broken:
                logits[row] = float("nan")
        return logits.float()


@cache
def tiny_compiler(text: TextPipeline, vocab: int) -> GrammarCompiler:
    return GrammarCompiler(lambda: text, vocab)
