"""The rounding a worker's configuration asks for, learnt from the model first where it needs to be."""

from __future__ import annotations

import random

import torch

from engine.errors import BayardError
from engine.models.checkpoint import Progress
from engine.models.rounding import Rounding
from engine.quantize.learning import learn_outliers
from engine.quantize.text_file import first_tokens
from engine.quantize.texts import calibration_text
from engine.spec.model_spec import ModelSpec
from engine.spec.precision import WeightPrecision, fp8_group, held_precision, is_rounded, weight_precision
from engine.spec.tensor_table import expected_tensors
from engine.text.loading import load_text

LEARNING_TOKENS = 512
RANDOM_IDS = "The checkpoint has no tokenizer: outlier inputs were learnt from random token ids."


def rounding_of(
    weights: str,
    spec: ModelSpec,
    device: torch.device,
    dtype: torch.dtype,
    progress: Progress,
    capabilities: frozenset[str] = frozenset(),
) -> tuple[Rounding | None, list[str]]:
    """What load_model is to make of the matrices, and what people should know of it.

    Blocks: for one forward over the checkpoint where outliers are learnt
    Raises: InvalidParameter for a precision that is none; UnsupportedFormat
    """
    precision = weight_precision(weights)
    if precision is WeightPrecision.STORED:
        return None, []
    notes = [f"Matrices of layers are rounded to {precision} at load; embeddings and routers are kept."]
    notes += odd_widths(spec, precision)
    if precision is not WeightPrecision.INT8_MIXED:
        return Rounding(precision, group=fp8_group(spec.hidden_size)), notes
    tokens, found = learning_tokens(spec)
    outliers = learn_outliers(spec, tokens, device, dtype, progress, capabilities=capabilities)
    columns = sum(len(known.columns) for known in outliers.values())
    notes.append(f"{columns:,} outlier columns of {len(outliers):,} inputs stay in 16 bits.")
    return Rounding(precision, outliers), notes + found


def odd_widths(spec: ModelSpec, precision: WeightPrecision) -> list[str]:
    """What people should know of matrices that are not held in the precision asked for, if there are any."""
    widths = {found.shape[-1] for found in expected_tensors(spec) if is_rounded(found.role[0]) and len(found.shape) > 1}
    odd = sorted(width for width in widths if held_precision(precision, width) is not precision)
    if not odd:
        return []
    listed = ", ".join(f"{width:,}" for width in odd)
    return [f"Matrices of the widths {listed} are rounded to int8: {precision} has no groups for them."]


def learning_tokens(spec: ModelSpec) -> tuple[list[int], list[str]]:
    """The first tokens of the text that models are learnt from; always the same ones for a model."""
    try:
        return first_tokens(load_text(spec).encode, calibration_text(), LEARNING_TOKENS), []
    except BayardError:
        drawn = random.Random(0)
        return [drawn.randrange(spec.vocab_size) for _ in range(LEARNING_TOKENS)], [RANDOM_IDS]
