"""The WordPiece tokenizer of an encoder, out of a GGUF header.

Converters turn the vocabulary round: what begins a word has a U+2581 before it, and what continues one has lost its
"##". Such files state neither case nor accents; everyone who reads them folds both, so that is done here too.
"""

from __future__ import annotations

from collections.abc import Mapping

from tokenizers import Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import WordPiece

from engine.errors import UnsupportedFormat
from engine.text.special_tokens import SpecialToken
from engine.text.spelling import Spelling, TokenTable
from engine.text.tokenizer_parts import TokenizerParts

KIND = "bert"  # tokenizer.ggml.model
_BEGINS_WORD = "\u2581"
_LONGEST_WORD = 100  # characters; a longer one is unknown
# Our names -> the header's, older spellings after newer ones.
_IDS = {
    "cls_token": ("cls", "bos"),
    "sep_token": ("seperator", "sep", "eos"),
    "unk_token": ("unknown",),
    "pad_token": ("padding",),
    "mask_token": ("mask",),
}
_USUAL = {
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "unk_token": "[UNK]",
    "pad_token": "[PAD]",
    "mask_token": "[MASK]",
}


def parts_from_gguf_wordpiece(metadata: Mapping[str, object], source: str) -> TokenizerParts:
    """Raises: UnsupportedFormat for a header that contradicts itself or lacks [CLS], [SEP] or [UNK]"""
    stored = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(stored, list) or not stored or not all(isinstance(text, str) for text in stored):
        raise UnsupportedFormat(f"{source} has no list of tokens.", "Convert it again.")
    ids = {name: _id(metadata, stored, name, keys, source) for name, keys in _IDS.items()}
    missing = [_USUAL[name] for name in ("cls_token", "sep_token", "unk_token") if ids[name] is None]
    if missing:
        raise UnsupportedFormat(f"{source} states no {', '.join(missing)}.", "Convert it again.")
    specials = {token_id: stored[token_id] for token_id in ids.values() if token_id is not None}
    tokens = [text if n in specials else _spelled(text) for n, text in enumerate(stored)]
    vocabulary = {text: n for n, text in enumerate(tokens)}
    cls, sep, unknown = ids["cls_token"], ids["sep_token"], ids["unk_token"]
    assert cls is not None
    assert sep is not None
    assert unknown is not None
    model = WordPiece(
        vocabulary, unk_token=stored[unknown], max_input_chars_per_word=_LONGEST_WORD, continuing_subword_prefix="##"
    )
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(strip_accents=True, lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return TokenizerParts(
        head=tokenizer,
        tail=tokenizer,
        table=TokenTable(tokens, Spelling.WORDPIECE, specials),
        specials=tuple(SpecialToken(token_id, text, True) for token_id, text in sorted(specials.items())),
        prefix_ids=(cls,),
        suffix_ids=(sep,),
        bos_token_id=cls,
        stop_token_ids=(sep,),
        unknown_token_id=unknown,
        strips_leading_space=True,
        templates={},
        special_names={name: stored[n] for name, n in ids.items() if n is not None},
    )


def _id(metadata: Mapping[str, object], tokens: list[str], name: str, keys: tuple[str, ...], source: str) -> int | None:
    """What the header states, else the place of the token's usual text."""
    for key in keys:
        stated = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if stated is not None:
            if isinstance(stated, bool) or not isinstance(stated, int) or not 0 <= stated < len(tokens):
                raise UnsupportedFormat(
                    f"{source} states tokenizer.ggml.{key}_token_id = {stated!r}; it has {len(tokens):,} tokens.",
                    "Convert it again.",
                )
            return stated
    return tokens.index(_USUAL[name]) if _USUAL[name] in tokens else None


def _spelled(text: str) -> str:
    if text.startswith(_BEGINS_WORD):
        return text[1:]
    return text if text.startswith("[") and text.endswith("]") else f"##{text}"
