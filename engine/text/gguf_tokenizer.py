"""Tokenizer and chat templates out of a GGUF header (the keys tokenizer.*)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer

from engine.errors import UnsupportedFormat
from engine.text.special_tokens import SpecialToken, is_guarded
from engine.text.spelling import Spelling, TokenTable
from engine.text.split_rules import SPLIT_RULES
from engine.text.template_text import literal_text
from engine.text.tokenizer_parts import TokenizerParts, stop_ids

_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 2, 3, 4, 6  # tokenizer.ggml.token_type
_SPACE = "\u2581"
_NAMES = {
    "bos_token": "bos",
    "eos_token": "eos",
    "unk_token": "unknown",
    "pad_token": "padding",
    "sep_token": "seperator",
}


def parts_from_gguf(metadata: Mapping[str, object], *, architecture: str, source: str) -> TokenizerParts:
    """Build the tokenizer a GGUF header describes.

    Raises: UnsupportedFormat for vocabularies Bayard cannot read exactly, or a header that contradicts itself
    """
    reader = _Header(metadata, source)
    kind = reader.text("tokenizer.ggml.model")
    tokens = reader.texts("tokenizer.ggml.tokens")
    types = reader.integers("tokenizer.ggml.token_type", len(tokens))
    templates = _templates(reader)
    template_text = "\0".join(map(literal_text, templates.values()))
    specials, plain_added = [], []
    for token_id, (text, token_type) in enumerate(zip(tokens, types, strict=True)):
        if token_type in (_CONTROL, _UNKNOWN, _USER_DEFINED):
            control = token_type != _USER_DEFINED
            if is_guarded(text, control=control, template_text=template_text):
                specials.append(SpecialToken(token_id, text, control))
            elif text:
                plain_added.append(text)
    guarded = {token.token_id for token in specials}

    if kind == "gpt2":
        head, compact = _byte_level(reader, tokens, guarded), Spelling.BYTE_LEVEL
        tail = head
    elif kind == "llama":
        in_order = architecture.startswith("gemma")
        scores = (
            [-float(n) for n in range(len(tokens))]
            if in_order
            else reader.numbers("tokenizer.ggml.scores", len(tokens))
        )
        if in_order:  # runs of spaces are stored as such, but looked up with their stand-in
            tokens = [_SPACE * len(t) if " " in t and not t.strip() else t for t in tokens]
            plain_added = [t for t in plain_added if t.strip(" ")]
        model = _scored_merges(tokens, types, scores, guarded)
        prefix = reader.flag("tokenizer.ggml.add_space_prefix", default=True)
        head = _sentencepiece(model, prefix=prefix, every_run=architecture == "phi3")
        tail = head if architecture == "phi3" or not prefix else _sentencepiece(model, prefix=False, every_run=False)
        compact = Spelling.SENTENCEPIECE
    else:
        raise UnsupportedFormat(
            f"{source}: the vocabulary is of kind {kind!r}; Bayard reads 'gpt2' and 'llama' vocabularies from GGUF.",
            "Import the model as a Hugging Face folder with its tokenizer.json instead.",
        )
    for tokenizer in {id(head): head, id(tail): tail}.values():
        tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in plain_added])

    ids = {name: reader.token_id(f"tokenizer.ggml.{key}_token_id", len(tokens)) for name, key in _NAMES.items()}
    bos, eos = ids["bos_token"], ids["eos_token"]
    rule = SPLIT_RULES.get(str(metadata.get("tokenizer.ggml.pre", "default")))
    bos_by_default = kind == "llama" or (rule is not None and rule.starts_with_bos)
    add_bos = reader.flag("tokenizer.ggml.add_bos_token", default=bos_by_default) and bos is not None
    add_eos = reader.flag("tokenizer.ggml.add_eos_token", default=False) and eos is not None
    turn_ends = tuple(reader.token_id(f"tokenizer.ggml.{key}_token_id", len(tokens)) for key in ("eot", "eom"))
    return TokenizerParts(
        head=head,
        tail=tail,
        table=TokenTable(tokens, compact, {token.token_id: token.text for token in specials}),
        specials=tuple(specials),
        prefix_ids=(cast(int, bos),) if add_bos else (),
        suffix_ids=(cast(int, eos),) if add_eos else (),
        bos_token_id=bos,
        stop_token_ids=stop_ids((eos, *turn_ends), tuple(specials)),
        unknown_token_id=next((n for n, t in enumerate(types) if t == _UNKNOWN), None) if kind == "llama" else None,
        strips_leading_space=compact is Spelling.SENTENCEPIECE
        and reader.flag("tokenizer.ggml.add_space_prefix", default=True),
        templates=templates,
        special_names={name: tokens[token_id] for name, token_id in ids.items() if token_id is not None},
    )


def _templates(reader: _Header) -> dict[str, str]:
    found = {}
    for key, value in reader.metadata.items():
        if key == "tokenizer.chat_template":
            found["default"] = str(value)
        elif key.startswith("tokenizer.chat_template."):
            found[key.removeprefix("tokenizer.chat_template.")] = str(value)
    return found


def _byte_level(reader: _Header, tokens: Sequence[str], guarded: set[int]) -> Tokenizer:
    name = str(reader.metadata.get("tokenizer.ggml.pre", "default"))
    rule = SPLIT_RULES.get(name)
    if rule is None:
        raise UnsupportedFormat(
            f"{reader.source}: text is cut by the rule {name!r}, which Bayard does not know; a near one would "
            f"spoil the model's answers unseen. Known: {', '.join(sorted(SPLIT_RULES))}.",
            "Import the model as a Hugging Face folder with its tokenizer.json instead.",
        )
    merges = []
    for merge in reader.texts("tokenizer.ggml.merges"):
        left, space, right = merge.partition(" ")
        if not space or not left or not right:
            raise UnsupportedFormat(
                f"{reader.source}: the merge {merge!r} does not name two tokens.", "Fetch the file again."
            )
        merges.append((left, right))
    vocabulary = {text: token_id for token_id, text in enumerate(tokens) if token_id not in guarded}
    tokenizer = _model(reader.source, vocabulary, merges, ignore_merges=rule.whole_words)
    normalizer = rule.normalizer()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = rule.pre_tokenizer()
    return tokenizer


def _model(source: str, vocabulary: dict[str, int], merges: list[tuple[str, str]], **options: Any) -> Tokenizer:
    try:
        return Tokenizer(BPE(vocab=vocabulary, merges=merges, **options))
    except Exception as error:
        raise UnsupportedFormat(
            f"{source}: vocabulary and merges do not fit together: {error}", "Fetch the file again."
        ) from error


_Scored = tuple[dict[str, int], list[tuple[str, str]], str | None]


def _scored_merges(tokens: Sequence[str], types: Sequence[int], scores: Sequence[float], guarded: set[int]) -> _Scored:
    """The merges a scored vocabulary implies: every way to make a token of two others, best score first."""
    vocabulary = {text: n for n, text in enumerate(tokens) if n not in guarded or types[n] == _UNKNOWN}
    pairs: list[tuple[float, int, int, str, str]] = []
    for token_id, text in enumerate(tokens):
        if token_id in guarded or types[token_id] == _BYTE:
            continue
        for at in range(1, len(text)):
            left, right = text[:at], text[at:]
            if left in vocabulary and right in vocabulary:
                pairs.append((scores[token_id], len(left), len(right), left, right))
    pairs.sort(key=lambda pair: pair[:3], reverse=True)
    unknown = next((tokens[n] for n, token_type in enumerate(types) if token_type == _UNKNOWN), None)
    return vocabulary, [(left, right) for _, _, _, left, right in pairs], unknown


def _sentencepiece(scored: _Scored, *, prefix: bool, every_run: bool) -> Tokenizer:
    vocabulary, merges, unknown = scored
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    steps: list[Normalizer] = [normalizers.Replace(" ", _SPACE)]
    cutting: PreTokenizer | None = None
    if prefix and every_run:
        steps.insert(0, normalizers.Prepend(_SPACE))
    elif prefix:
        steps = []
        cutting = pre_tokenizers.Metaspace(replacement=_SPACE, prepend_scheme="first", split=False)
    if steps:
        tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.pre_tokenizer = cutting or pre_tokenizers.Split(Regex("(?!)"), "isolated")
    return tokenizer


class _Header:
    """Typed access to a header whose content is not trusted."""

    def __init__(self, metadata: Mapping[str, object], source: str) -> None:
        self.metadata = metadata
        self.source = source

    def _wrong(self, key: str, wanted: str) -> UnsupportedFormat:
        found = "nothing" if key not in self.metadata else f"a {type(self.metadata[key]).__name__}"
        return UnsupportedFormat(
            f"{self.source}: {key} is {found}, not {wanted}.", "The file is damaged or incomplete: fetch it again."
        )

    def text(self, key: str) -> str:
        value = self.metadata.get(key)
        if not isinstance(value, str):
            raise self._wrong(key, "a text")
        return value

    def texts(self, key: str) -> list[str]:
        value = self.metadata.get(key)
        if (
            not isinstance(value, Sequence)
            or isinstance(value, str | bytes)
            or not all(isinstance(v, str) for v in value)
        ):
            raise self._wrong(key, "a list of texts")
        return list(value)

    def numbers(self, key: str, length: int) -> list[float]:
        value = self.metadata.get(key)
        if value is None or isinstance(value, str | bytes) or not hasattr(value, "__len__"):
            raise self._wrong(key, f"a list of {length} numbers")
        found = [float(v) for v in cast(Sequence[float], value)]
        if len(found) != length:
            raise UnsupportedFormat(
                f"{self.source}: {key} has {len(found)} entries for {length} tokens.", "Fetch the file again."
            )
        return found

    def integers(self, key: str, length: int) -> list[int]:
        if key not in self.metadata:
            return [1] * length
        return [int(v) for v in self.numbers(key, length)]

    def flag(self, key: str, *, default: bool) -> bool:
        value = self.metadata.get(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false")
        return value

    def token_id(self, key: str, limit: int) -> int | None:
        value = self.metadata.get(key)
        if value is None:
            return None
        if not isinstance(value, int) or not 0 <= value < limit:
            raise UnsupportedFormat(
                f"{self.source}: {key} is {value!r}; the vocabulary has {limit} tokens.", "Fetch the file again."
            )
        return value
