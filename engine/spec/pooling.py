"""How a folder says its texts become vectors: the files that sentence-transformers writes beside a model.

modules.json lists the steps after the transformer: a pooling, perhaps a normalisation, which Bayard always makes.
"""

from __future__ import annotations

import json
from pathlib import Path

from engine.errors import UnsupportedFormat
from engine.spec.fields import MAX_CONTEXT, MAX_WIDTH, Fields
from engine.spec.hf_folder import MAX_JSON_BYTES, read_json
from engine.spec.model_spec import PoolingKind, PoolingSpec

MODULES_FILE = "modules.json"
SENTENCE_FILE = "sentence_bert_config.json"
PROMPTS_FILE = "config_sentence_transformers.json"
MAX_MODULES = 8
MAX_PROMPTS = 256
MAX_PROMPT_CHARACTERS = 4096
_KINDS = {
    "pooling_mode_cls_token": PoolingKind.CLS,
    "pooling_mode_mean_tokens": PoolingKind.MEAN,
    "pooling_mode_lasttoken": PoolingKind.LAST,
}
_STATED = {  # newer files name one mode
    "cls": PoolingKind.CLS,
    "mean": PoolingKind.MEAN,
    "lasttoken": PoolingKind.LAST,
}


def hf_pooling(folder: Path, hidden_size: int) -> PoolingSpec | None:
    """What the folder states; None where it states nothing.

    Raises: UnsupportedFormat for a step or a pooling that is not understood
    """
    modules = _modules(folder)
    if modules is None:
        return None
    kind = None
    for name, place in modules:
        if name == "Pooling":
            if kind is not None:
                raise _refusal(folder, "it pools twice")
            kind = _kind(folder, place, hidden_size)
        elif name not in ("Transformer", "Normalize"):
            raise _refusal(folder, f"it has the step {name}")
    if kind is None:
        raise _refusal(folder, "none of its steps pools")
    return PoolingSpec(kind, *_prompts(folder))


def decoder_pooling(folder: Path, hidden_size: int) -> PoolingSpec | None:
    """As hf_pooling, for a decoder, whose last token alone has seen the whole text."""
    found = hf_pooling(folder, hidden_size)
    if found is not None and found.kind is not PoolingKind.LAST:
        raise _refusal(folder, f"it pools a decoder by {found.kind}; the last token's state alone works")
    return found


def stated_max_tokens(folder: Path) -> int | None:
    """The longest text that the model was trained to embed, if the folder says so."""
    path = folder / SENTENCE_FILE
    if not path.is_file():
        return None
    stated = Fields(read_json(path), f"{folder.name}/{SENTENCE_FILE}")
    return stated.whole("max_seq_length", 1, MAX_CONTEXT) if "max_seq_length" in stated else None


def _modules(folder: Path) -> list[tuple[str, str]] | None:
    """The steps' class names and folders."""
    path = folder / MODULES_FILE
    if not path.is_file():
        return None
    raw = path.read_bytes()
    try:
        found = json.loads(raw) if len(raw) <= MAX_JSON_BYTES else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not 0 < len(found) <= MAX_MODULES:
        raise _refusal(folder, "it is no list of a few steps")
    steps = []
    for entry in found:
        stated = Fields(entry, f"{folder.name}/{MODULES_FILE}") if isinstance(entry, dict) else None
        if stated is None:
            raise _refusal(folder, "a step is no object")
        steps.append((stated.text("type").rsplit(".", 1)[-1], stated.text("path")))
    return steps


def _kind(folder: Path, place: str, hidden_size: int) -> PoolingKind:
    path = folder / place / "config.json"
    if Path(place).name != place or not path.is_file():
        raise _refusal(folder, f"its pooling {place[:80]!r} has no config.json beside it")
    stated = Fields(read_json(path), f"{folder.name}/{place}/config.json")
    for name in ("word_embedding_dimension", "embedding_dimension"):
        if name in stated:
            stated.whole(name, hidden_size, min(hidden_size, MAX_WIDTH))
    if "pooling_mode" in stated:
        mode = stated.one_of("pooling_mode", tuple(_STATED), "mean")
        return _STATED[mode]
    chosen = [name for name, value in stated.values.items() if name.startswith("pooling_mode_") and value is True]
    if len(chosen) != 1 or chosen[0] not in _KINDS:
        raise UnsupportedFormat(
            f"{stated.source} pools by {', '.join(chosen) or 'nothing'}; one of {', '.join(_KINDS)} works.",
            "Import a model that pools in one of these ways.",
        )
    return _KINDS[chosen[0]]


def _prompts(folder: Path) -> tuple[tuple[tuple[str, str], ...], str]:
    """Prompts by name, and the default one's name."""
    path = folder / PROMPTS_FILE
    if not path.is_file():
        return (), ""
    stated = Fields(read_json(path), f"{folder.name}/{PROMPTS_FILE}")
    section = stated.section("prompts")
    found: list[tuple[str, str]] = []
    for name in sorted(section.values) if section else ():
        assert section is not None
        prompt = section.text(name)
        if len(prompt) > MAX_PROMPT_CHARACTERS or len(found) == MAX_PROMPTS:
            raise _refusal(folder, f"the prompt {name[:80]!r} is too long, or there are too many")
        found.append((name, prompt))
    default = stated.text("default_prompt_name", "")
    if default and default not in dict(found):
        raise stated.refuse("default_prompt_name", "the name of one of its prompts")
    return tuple(found), default


def _refusal(folder: Path, what: str) -> UnsupportedFormat:
    return UnsupportedFormat(
        f"{folder.name}/{MODULES_FILE} cannot be followed: {what}.",
        "Models whose steps are Transformer, Pooling and Normalize work.",
    )
