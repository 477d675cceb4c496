"""Tokenizer and chat templates out of a Hugging Face folder: tokenizer.json, tokenizer_config.json, *.jinja."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer

from engine.errors import UnsupportedFormat
from engine.text.special_tokens import SpecialToken, is_guarded
from engine.text.spelling import Spelling, TokenTable
from engine.text.template_text import literal_text
from engine.text.tokenizer_parts import TokenizerParts, stop_ids

_NAMED = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
_AGAIN = "Fetch the model's files again."


def parts_from_folder(folder: Path, *, eos_token_ids: tuple[int, ...]) -> TokenizerParts:
    """Build the tokenizer of a Hugging Face folder.

    Raises: UnsupportedFormat when tokenizer.json is missing, damaged, or of a kind Bayard cannot decode exactly
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise UnsupportedFormat(
            f"{folder} has no tokenizer.json.",
            "Save it with transformers: AutoTokenizer.from_pretrained(...).save_pretrained(...).",
        )
    described = _json(path)
    config = _json(folder / "tokenizer_config.json")
    templates = _templates(folder, config)
    template_text = "\0".join(map(literal_text, templates.values()))
    specials, plain = [], []
    for entry in described.get("added_tokens") or []:
        text, control = entry["content"], bool(entry.get("special"))
        if is_guarded(text, control=control, template_text=template_text):
            flags = {flag: bool(entry.get(flag)) for flag in ("lstrip", "rstrip", "single_word")}
            specials.append(SpecialToken(entry["id"], text, control, **flags))
        else:
            plain.append(entry)
    ids = {token.text: token.token_id for token in specials}
    tokens = _tokens(path, described)
    prefix, suffix = _around(described.get("post_processor"))
    names = _names(config)
    bos = ids.get(names.get("bos_token", ""))
    if config.get("add_bos_token") is False:
        prefix = tuple(n for n in prefix if n != bos)
    elif config.get("add_bos_token") is True and bos is not None and bos not in prefix:
        prefix = (bos, *prefix)
    spelling, strips = _spelling(path, described.get("decoder"))
    head, tail = _plain_tokenizers(path, described, plain)
    generation = _json(folder / "generation_config.json").get("eos_token_id")
    more_eos = generation if isinstance(generation, list) else [generation]
    eos = ids.get(names.get("eos_token", ""))
    return TokenizerParts(
        head=head,
        tail=tail,
        table=TokenTable(tokens, spelling, {token.token_id: token.text for token in specials}),
        specials=tuple(specials),
        prefix_ids=prefix,
        suffix_ids=suffix,
        bos_token_id=bos,
        stop_token_ids=stop_ids((eos, *eos_token_ids, *more_eos), tuple(specials)),
        unknown_token_id=None if spelling is Spelling.BYTE_LEVEL else _unknown(described["model"], ids),
        strips_leading_space=strips,
        templates=templates,
        special_names=names,
    )


def _json(path: Path) -> dict[str, Any]:
    """A JSON file's object; {} when the file is not there."""
    if not path.is_file():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnsupportedFormat(f"{path} is no JSON object: {error}.", _AGAIN) from error


def _templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    stated = config.get("chat_template")
    if isinstance(stated, str):
        found["default"] = stated
    elif isinstance(stated, list):
        found.update({entry["name"]: entry["template"] for entry in stated})
    single = folder / "chat_template.jinja"
    if single.is_file():
        found["default"] = single.read_text(encoding="utf-8")
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        found[path.stem] = path.read_text(encoding="utf-8")
    return found


def _names(config: Mapping[str, Any]) -> dict[str, str]:
    named = {name: config.get(name) for name in _NAMED}
    texts = {name: value.get("content") if isinstance(value, dict) else value for name, value in named.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def _unknown(model: Mapping[str, Any], ids: Mapping[str, int]) -> int | None:
    """The id a model gives to what it cannot spell: named by its text, or by its place in a scored vocabulary."""
    place = model.get("unk_id")
    return place if isinstance(place, int) else ids.get(model.get("unk_token") or "")


def _tokens(path: Path, described: Mapping[str, Any]) -> list[str | None]:
    vocabulary = (described.get("model") or {}).get("vocab")
    if isinstance(vocabulary, dict):
        by_id = {token_id: text for text, token_id in vocabulary.items()}
    elif isinstance(vocabulary, list):
        by_id = {token_id: entry[0] for token_id, entry in enumerate(vocabulary)}
    else:
        raise UnsupportedFormat(f"{path} has no vocabulary.", _AGAIN)
    by_id.update({entry["id"]: entry["content"] for entry in described.get("added_tokens") or []})
    size = max(by_id, default=-1) + 1
    if min(by_id, default=0) < 0 or size > 4 * len(by_id) + 65536:
        raise UnsupportedFormat(f"{path}: {len(by_id)} tokens have ids up to {size - 1}.", _AGAIN)
    return [by_id.get(token_id) for token_id in range(size)]


def _steps(part: Mapping[str, Any] | None, key: str) -> list[dict[str, Any]]:
    """A component's steps: a Sequence's own, or itself."""
    if part is None:
        return []
    return (
        [step for inner in part[key] for step in _steps(inner, key)] if part.get("type") == "Sequence" else [dict(part)]
    )


def _around(post_processor: Mapping[str, Any] | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids a post-processor puts before and after one text."""
    prefix: list[int] = []
    suffix: list[int] = []
    for step in _steps(post_processor, "processors"):
        if step["type"] == "TemplateProcessing":
            side = prefix
            for item in step["single"]:
                if "SpecialToken" in item:
                    side.extend(step["special_tokens"][item["SpecialToken"]["id"]]["ids"])
                else:
                    side = suffix
        elif step["type"] in ("BertProcessing", "RobertaProcessing"):
            prefix.append(step["cls"][1])
            suffix.append(step["sep"][1])
    return tuple(prefix), tuple(suffix)


def _spelling(path: Path, decoder: Mapping[str, Any] | None) -> tuple[Spelling, bool]:
    """How tokens spell bytes, and whether the first one's space is to be dropped."""
    steps = _steps(decoder, "decoders")
    kinds = {step["type"] for step in steps}
    if "ByteLevel" in kinds:
        return Spelling.BYTE_LEVEL, False
    if "WordPiece" in kinds:
        return Spelling.WORDPIECE, True
    if "Metaspace" in kinds:
        return Spelling.SENTENCEPIECE, any(
            step.get("prepend_scheme", "always") != "never" for step in steps if step["type"] == "Metaspace"
        )
    if "ByteFallback" in kinds:
        return Spelling.SENTENCEPIECE, any(step["type"] == "Strip" and step.get("start") for step in steps)
    raise UnsupportedFormat(
        f"{path}: its decoder has the steps {sorted(kinds) or 'none'}; Bayard decodes ByteLevel, Metaspace, "
        "ByteFallback and WordPiece vocabularies.",
        "Choose another model; the nearest by architecture that has one of these will do.",
    )


def _plain_tokenizers(
    path: Path, described: dict[str, Any], plain: list[dict[str, Any]]
) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizer without guarded tokens, for the beginning of a text and for the rest of it."""
    model = dict(described["model"])
    if isinstance(model["vocab"], dict):
        # an added token keeps its id only if the model's own vocabulary has it
        model["vocab"] = {**model["vocab"], **{entry["content"]: entry["id"] for entry in plain}}
    elif any(entry["id"] >= len(model["vocab"]) for entry in plain):
        raise UnsupportedFormat(f"{path} adds ordinary tokens to a scored vocabulary.", "Choose another model.")
    stripped = {
        **described,
        "model": model,
        "added_tokens": plain,
        "post_processor": None,
        "truncation": None,
        "padding": None,
    }
    head = _tokenizer(path, stripped)
    cutting = described.get("pre_tokenizer")
    later = _without_prefix(cutting)
    return head, head if later == cutting else _tokenizer(path, {**stripped, "pre_tokenizer": later})


def _without_prefix(cutting: Any) -> Any:
    """A pre-tokenizer as it works after the beginning of a text: "first" no longer applies."""
    if not isinstance(cutting, dict):
        return cutting
    if cutting.get("type") == "Sequence":
        return {**cutting, "pretokenizers": [_without_prefix(step) for step in cutting["pretokenizers"]]}
    if cutting.get("type") == "Metaspace" and cutting.get("prepend_scheme") == "first":
        return {**cutting, "prepend_scheme": "never"}
    return cutting


def _tokenizer(path: Path, described: dict[str, Any]) -> Tokenizer:
    try:
        return Tokenizer.from_str(msgspec.json.encode(described).decode())
    except Exception as error:
        raise UnsupportedFormat(f"{path} cannot be read: {error}.", _AGAIN) from error
