"""A model's tokens as the grammar library wants them."""

from __future__ import annotations

from llguidance import LLTokenizer, TokenizerWrapper

from engine.text import TextPipeline


class _Tokens:
    """Guarded tokens are given as special, so that no grammar takes one for the text it is spelled with."""

    def __init__(self, text: TextPipeline, vocab_size: int) -> None:
        size = max(vocab_size, text.vocab_size)
        self.tokens = [text.token_bytes(token_id) for token_id in range(size)]
        self.special_token_ids = sorted(text.guarded_token_ids)
        self.eos_token_id = text.stop_token_ids[0] if text.stop_token_ids else _spare(text)
        self.bos_token_id = text.bos_token_id
        self._text = text

    def __call__(self, data: bytes | str) -> list[int]:
        return self._text.encode(data if isinstance(data, str) else data.decode("utf-8", "ignore"))


def vocabulary_of(text: TextPipeline, vocab_size: int) -> LLTokenizer:
    """Blocks: about a second for 150,000 tokens."""
    return LLTokenizer(TokenizerWrapper(_Tokens(text, vocab_size)))


def _spare(text: TextPipeline) -> int:
    """A token to stand for the end where the model has none: requests then end when their grammar does."""
    return min(text.guarded_token_ids, default=0)
