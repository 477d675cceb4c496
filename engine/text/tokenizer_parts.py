"""What a checkpoint says about its text, before Bayard's own handling is put around it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tokenizers import Tokenizer

from engine.text.special_tokens import SpecialToken
from engine.text.spelling import TokenTable


@dataclass(frozen=True, slots=True)
class TokenizerParts:
    """Read by engine.text.gguf_tokenizer or engine.text.hf_tokenizer; TextPipeline is built from it."""

    head: Tokenizer  # for a run at the beginning of a text; knows no guarded token
    tail: Tokenizer  # for a run after a special token; often the same object
    table: TokenTable
    specials: tuple[SpecialToken, ...]
    prefix_ids: tuple[int, ...]  # what the tokenizer puts before a text that is to begin as in training (BOS, [CLS])
    suffix_ids: tuple[int, ...]
    bos_token_id: int | None
    stop_token_ids: tuple[int, ...]
    unknown_token_id: (
        int | None
    )  # what plain text gives where the vocabulary cannot spell it; None: such text is dropped
    strips_leading_space: bool  # the first token's space is an artefact of the vocabulary
    templates: Mapping[str, str]  # chat templates by name; "default" and perhaps "tool_use"
    special_names: Mapping[str, str]  # what templates call them: bos_token, eos_token, ...


END_OF_TURN_TEXTS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<｜end▁of▁sentence｜>",
    "<|return|>",
    "<|call|>",
    "<|eot|>",
    "<|eom|>",
)


def stop_ids(named: tuple[int | None, ...], specials: tuple[SpecialToken, ...]) -> tuple[int, ...]:
    """The ids that end a generation: those the checkpoint names and the control tokens known to end a turn."""
    texts = {token.text: token.token_id for token in specials if token.control}
    endings = list(END_OF_TURN_TEXTS)
    if "<|return|>" in texts and "<|call|>" in texts:
        endings.remove("<|end|>")  # in harmony it ends one message of a turn, not the turn
    found = [token_id for token_id in named if token_id is not None]
    found += [texts[text] for text in endings if text in texts]
    return tuple(dict.fromkeys(found))
