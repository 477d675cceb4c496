"""The tensors that hold a quantised matrix, taken from a checkpoint's table and checked."""

from __future__ import annotations

from collections.abc import MutableMapping

from engine.errors import UnsupportedFormat
from engine.spec.model_spec import ModelSpec, TensorInfo
from engine.spec.quantisation import OUTLIER_PARTS, Component, QuantScheme, Storage, components

PART = "#"  # between a role and the suffix of one of its tensors


def part_role(role: str, suffix: str) -> str:
    """The role in the tensor table of one tensor of a quantised matrix."""
    return f"{role}{PART}{suffix}"


def take_parts(
    spec: ModelSpec, name: str, shape: tuple[int, ...], stored: MutableMapping[str, TensorInfo]
) -> dict[str, TensorInfo] | None:
    """The tensors of one matrix by suffix, the codes first. None: its rules want it plain.

    Mutates: stored, which loses what is taken
    Raises: UnsupportedFormat for a tensor that is missing or of another type or shape
    """
    module = name.removesuffix(".weight")
    if spec.quantisation is None:
        return None
    scheme = spec.quantisation.scheme_of(module)
    if scheme is None:
        return None
    rows, columns = shape
    step = max(32 // scheme.bits if scheme.storage in (Storage.AWQ, Storage.GPTQ, Storage.PACKED) else 1, 1)
    # AWQ packs a row's outputs in words, GPTQ its zero points.
    uneven = columns % step or (scheme.storage in (Storage.AWQ, Storage.GPTQ) and rows % step)
    if (scheme.group > 0 and columns % scheme.group) or uneven or _cut_block(scheme.block, columns):
        raise UnsupportedFormat(
            f"{spec.name} has {module} as {rows:,} x {columns:,}, which groups of {scheme.block or scheme.group} of "
            f"{scheme.bits} bits do not divide.",
            "Quantise the model again in groups that divide its widths, for example 32 or 64.",
        )
    found: dict[str, TensorInfo] = {}
    for part in components(scheme, rows, columns):
        info = stored.pop(f"{module}.{part.suffix}", None)
        if info is not None:
            _check(spec, info, part)
            found[part.suffix] = info
        elif part.required:
            raise UnsupportedFormat(
                f"{spec.name} lacks {module}.{part.suffix}, which a matrix quantised by {spec.quantisation.label} has.",
                "The checkpoint is incomplete, or its configuration is of another one: download both again.",
            )
    _check_outliers(spec, module, found, scheme)
    return found


def _check_outliers(spec: ModelSpec, module: str, found: dict[str, TensorInfo], scheme: QuantScheme) -> None:
    """Columns kept beside come with their numbers, as many of one as of the other, and with a multiplier a row."""
    outliers = [suffix for suffix in OUTLIER_PARTS if suffix in found]
    if not outliers:
        return
    missing = [suffix for suffix in OUTLIER_PARTS[:2] if suffix not in found]
    if missing:
        raise UnsupportedFormat(
            f"{spec.name} has {module}.{outliers[0]} without {module}.{missing[0]}.",
            "The checkpoint is incomplete: download it or quantise the model again.",
        )
    columns, kept = (found[suffix] for suffix in OUTLIER_PARTS[:2])
    if columns.shape[0] != kept.shape[1]:
        raise UnsupportedFormat(
            f"{spec.name} has {columns.shape[0]:,} numbers in {columns.name} and {kept.shape[1]:,} columns in "
            f"{kept.name}; as many of both are needed.",
            "The tensors do not belong together: download the checkpoint or quantise the model again.",
        )
    if scheme.group > 0 or scheme.zeros:
        raise UnsupportedFormat(
            f"{spec.name} has {columns.name} where its configuration states "
            f"{'zero points' if scheme.zeros else f'groups of {scheme.group}'}; one multiplier a row is needed.",
            "Quantise the model again, for example with `bayard quantize MODEL --to int8-mixed`.",
        )


def _cut_block(block: tuple[int, int] | None, columns: int) -> bool:
    return block is not None and columns % block[1] != 0


def _check(spec: ModelSpec, info: TensorInfo, part: Component) -> None:
    if info.dtype not in part.dtypes or info.shape not in part.shapes:
        wanted = " or ".join(str(list(shape)) for shape in part.shapes[:3])
        raise UnsupportedFormat(
            f"{spec.name} has {info.name} as {info.dtype} {list(info.shape)}; {' or '.join(part.dtypes)} {wanted} "
            f"is needed.",
            "The configuration and the weights do not belong together: download or convert both again.",
        )
