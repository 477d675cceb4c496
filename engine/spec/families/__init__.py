"""The decoder families Bayard knows, a file for each kind: what their checkpoints are called and how they differ."""

from __future__ import annotations

import difflib

from engine.errors import UnsupportedFormat
from engine.spec.families import deepseek, gemma, glm, gpt_oss, granite, llama, mixtral, olmo, phi
from engine.spec.family import Family
from engine.spec.model_spec import CheckpointFormat

FAMILIES: tuple[Family, ...] = (
    *llama.FAMILIES,
    *mixtral.FAMILIES,
    *gemma.FAMILIES,
    *olmo.FAMILIES,
    *granite.FAMILIES,
    *phi.FAMILIES,
    *glm.FAMILIES,
    *gpt_oss.FAMILIES,
    *deepseek.FAMILIES,
)

_BY_KEY = {family.key: family for family in FAMILIES}


def family_of(key: str) -> Family:
    """The family with a ModelSpec's architecture key."""
    return _BY_KEY[key]


def family_named(architecture: str, stored_as: CheckpointFormat, model: str, *, experts: bool = False) -> Family:
    """The family of a stored architecture name. Raises: UnsupportedFormat, naming the nearest that works.

    experts: whether the checkpoint states any; it tells apart families that one GGUF architecture stands for
    """
    known = {
        name: family
        for family in sorted(FAMILIES, key=lambda family: family.experts == experts)
        for name in (family.hf_architectures if stored_as is CheckpointFormat.HF else family.gguf_architectures)
    }
    if architecture in known:
        return known[architecture]
    nearest = difflib.get_close_matches(architecture, known, n=1, cutoff=0.5)
    shown = architecture if len(architecture) <= 80 else architecture[:77] + "..."
    raise UnsupportedFormat(
        f"{model} has the architecture {shown!r}, which is not supported; supported are {', '.join(sorted(known))}.",
        f"The nearest that works is {nearest[0]}." if nearest else "Import a model of a supported architecture.",
    )
