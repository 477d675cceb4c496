"""A text pipeline in which a token is a byte: what a test reads is what the engine wrote."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

EOS = 256
VOCAB_SIZE = 257


class ByteText:
    """Stands for engine.text.TextPipeline."""

    stop_token_ids = (EOS,)
    special_token_ids = frozenset({EOS})
    vocab_size = VOCAB_SIZE
    strips_leading_space = False
    has_chat_template = True

    def encode(self, text: str, *, special: bool = False, add_bos: bool = False) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        return bytes(i for i in ids if i < EOS).decode("utf-8", "ignore")

    def count(self, text: str) -> int:
        return len(self.encode(text))

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> list[int]:
        text = "".join(f"<{message['role']}>{message['content']}\n" for message in messages)
        return self.encode(text + "<assistant>")

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < EOS else b""
