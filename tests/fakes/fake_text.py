"""A text pipeline in which a token is a byte: what a test reads is what the engine wrote."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from engine.errors import InvalidParameter
from engine.text import ReasoningSplitter
from engine.text.tools import ToolFormat

EOS = 256
VOCAB_SIZE = 257


class ByteText:
    """Stands for engine.text.TextPipeline."""

    stop_token_ids = (EOS,)
    special_token_ids = frozenset({EOS})
    vocab_size = VOCAB_SIZE
    strips_leading_space = False
    has_chat_template = True

    def __init__(self, *, tool_format: ToolFormat | None = ToolFormat.HERMES, thinks: bool = False) -> None:
        self.tool_format = tool_format
        self.thinking_marks = ("<think>", "</think>") if thinks else None

    def reasoning_splitter(self, prompt_ids: Sequence[int]) -> ReasoningSplitter | None:
        return ReasoningSplitter() if self.thinking_marks else None

    def prompt_end(self, prompt_ids: Sequence[int]) -> str:
        return self.decode(prompt_ids[-64:]).rstrip()

    def special_id(self, text: str) -> int | None:
        return None

    def encode(self, text: str, *, special: bool = False, add_bos: bool = False) -> list[int]:
        try:
            return list(text.encode())
        except UnicodeEncodeError:
            raise InvalidParameter("The text holds half a surrogate pair, which is no character.") from None

    def encode_for_embedding(self, text: str, prompt: str | None = None) -> list[int]:
        return self.encode(text, add_bos=True)

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
        text = f"<tools>{json.dumps(list(tools))}\n" if tools else ""
        text += "".join(f"<{message['role']}>{message['content']}\n" for message in messages)
        return self.encode(text + "<assistant>" if add_generation_prompt else text)

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < EOS else b""
