"""One quantisation from beginning to end: resumable, a shard a layer, nothing left where it fails for good."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from engine.devices import Device, open_device
from engine.errors import InvalidParameter, StoreError, UnsupportedFormat
from engine.quant.encode import DEFAULT_GROUPS
from engine.quantize.folder import check_folder, write_beside
from engine.quantize.kv_form import kv_cache_scheme, refuse_unlearnable, stored_kv_scales
from engine.quantize.layer_rounding import LayerRounding
from engine.quantize.learning import LayerInputs, learn
from engine.quantize.partial_folder import STATE_FILE, UNFINISHED, partial_folder
from engine.quantize.source import Source
from engine.quantize.stored_form import FORMATS, GROUPED, PER_WORD, quantisation_config
from engine.quantize.text_file import first_tokens
from engine.spec import read_spec
from engine.spec.hf_folder import INDEX_FILE
from engine.spec.model_spec import KvScheme, ModelSpec
from engine.spec.precision import WeightPrecision, fp8_group
from engine.text.loading import load_text

CALIBRATION_TOKENS = 8192  # of a text, its first
LEAST_TOKENS = 32
GROUPS = (128, 64, 32, 16)

Report = Callable[[str, int, int], None]  # stage, done, total


@dataclass(frozen=True, slots=True)
class QuantizeJob:
    model_path: Path
    precision: WeightPrecision
    out: Path
    text: str  # to learn from; "": nothing is learnt
    device: str = "cpu"
    restart: bool = False  # throw away what an interrupted run has left
    group: int | None = None  # of fp8 and int4: neighbours with one multiplier; 0: a row; None: what is usual
    kv: str = ""  # "fp8" or "int8": multipliers for such a cache are learnt too; "": they are not


def quantize(job: QuantizeJob, report: Report) -> ModelSpec:
    """Write the folder job.out. Interrupted, it goes on where it stopped when it is asked for the same again.

    Blocks: for as long as reading, learning and writing take; holds about two layers
    Raises: Conflict when job.out is there, or what was begun is of another job; UnsupportedFormat; InvalidParameter;
    StoreError where the folder cannot be written, whose cause may be mended before it is asked for again
    """
    keeps = job.precision is WeightPrecision.STORED
    if job.precision not in FORMATS and not (keeps and job.kv):
        known = ", ".join(FORMATS)
        told = f"Use one of {known}, or --kv to learn a cache's multipliers alone."
        raise InvalidParameter(f"--to is {job.precision}.", told, param="to")
    spec = read_spec(job.model_path)
    if job.kv:
        refuse_unlearnable(spec, job.kv, job.text)
    opened = open_device(job.device)
    source = Source(
        spec,
        lambda done, total: report("reading", done, total),
        opened.torch_device,
        keeps_matrices=keeps,
        learns_kv=bool(job.kv),
    )
    group = 0 if keeps else _group(job, source)
    tokens = learning_tokens(spec, job.text) if job.text else []
    try:
        with partial_folder(job.out, _asked(job, spec), restart=job.restart) as partial:
            _write(job, source, group, tokens, opened, partial, report)
            check_folder(replace(spec, kv_scheme=KvScheme(job.kv)) if job.kv else spec, partial)
            partial.rename(job.out)
            (job.out / STATE_FILE).unlink()  # last: without it what is there would be nobody's
    except (OSError, SafetensorError) as error:
        raise StoreError(
            f"{job.out} cannot be written: {error}.",
            "When that is mended, the same command goes on where it stopped; or give another --out.",
        ) from error
    return read_spec(job.out)


def learning_tokens(spec: ModelSpec, text: str) -> list[int]:
    """Raises: InvalidParameter where there are too few to learn from."""
    tokens = first_tokens(load_text(spec).encode, text, CALIBRATION_TOKENS)
    if len(tokens) < LEAST_TOKENS:
        raise InvalidParameter(
            f"The text is {len(tokens)} tokens long; at least {LEAST_TOKENS} are needed to learn from.",
            "Give a longer one, leave --calibrate out for the built-in text, or say none to learn nothing.",
            param="calibrate",
        )
    return tokens


def _write(
    job: QuantizeJob,
    source: Source,
    group: int,
    tokens: list[int],
    opened: Device,
    partial: Path,
    report: Report,
) -> None:
    """All files of the folder, but those that are there."""
    spec = source.spec
    # First, because it may be refused.
    cache = kv_cache_scheme(job.kv) if job.kv else source.kv_cache_scheme()
    write_beside(spec, partial, quantisation_config(job.precision, group, source.kept_modules(), cache))
    writer = _Writer(partial, len(spec.layers) + 2)
    rounding = LayerRounding(source, job.precision, group)
    writer.write(0, lambda: {t.name: t.numbers() for t in source.of_model(("embed",))})
    source.release()

    def tensors(index: int, inputs: LayerInputs | None) -> dict[str, Tensor]:
        made = rounding.tensors(index, inputs)
        if inputs is None or inputs.kv_scales is None:
            return made
        return made | stored_kv_scales(source.attention_module(index), inputs.kv_scales)

    def write_layer(index: int, inputs: LayerInputs | None) -> None:
        writer.write(index + 1, lambda: tensors(index, inputs))
        source.release()
        report("quantising", index + 1, len(spec.layers))

    if tokens:
        if not writer.has_all(range(1, len(spec.layers) + 1)):
            learn(
                spec,
                tokens,
                job.precision,
                opened.torch_device,
                opened.default_dtype,
                write_layer,
                lambda done, total: report("learning", done, total),
                opened.capabilities.names(),
                kv=job.kv,
            )
    else:
        for layer in spec.layers:
            write_layer(layer.index, None)
    last = ("final_norm", "lm_head")
    writer.write(len(spec.layers) + 1, lambda: {t.name: t.numbers() for t in source.of_model(last)})
    source.release()
    writer.finish((partial / "config.json").stat().st_mode)


def group_for(widths: set[int], most: int) -> int:
    """The largest group up to most that divides all widths; one for all, as a configuration states it. 0: none does"""
    return next((size for size in GROUPS if size <= most and all(width % size == 0 for width in widths)), 0)


def _group(job: QuantizeJob, source: Source) -> int:
    """Raises: InvalidParameter for a group that the precision or the model's widths do not have."""
    widths = source.widths()
    four_bits = job.precision is WeightPrecision.INT4
    if four_bits and (odd := [width for width in widths if width % PER_WORD]):
        raise UnsupportedFormat(
            f"{source.spec.name} has a matrix of width {min(odd):,}; int4 is written in words of {PER_WORD} numbers.",
            "Choose fp8 or int8.",
        )
    if job.group is None:
        usual = fp8_group(source.spec.hidden_size) if job.precision is WeightPrecision.FP8 else DEFAULT_GROUPS["int4"]
        found = group_for(widths, usual) if usual else 0
        if four_bits and not found:
            raise InvalidParameter(
                f"No group of {', '.join(str(size) for size in GROUPS)} divides all of this model's widths: "
                f"{', '.join(f'{width:,}' for width in sorted(widths))}.",
                "Choose fp8 or int8, which lose less, or --group 0 for one multiplier a row.",
                param="group",
            )
        return found
    if job.precision not in GROUPED:
        raise InvalidParameter(
            f"{job.precision} has a multiplier a row.", f"Groups are of {' and '.join(GROUPED)}.", param="group"
        )
    known = f"Use one of {', '.join(str(size) for size in GROUPS)}, or 0 for rows."
    if job.group < 0 or job.group % GROUPS[-1]:
        raise InvalidParameter(f"--group is {job.group}; groups are of sixteens.", known, param="group")
    if unfit := [width for width in widths if job.group and width % job.group]:
        raise InvalidParameter(
            f"Groups of {job.group} do not divide a matrix's width of {min(unfit):,}.", known, param="group"
        )
    return job.group


def _asked(job: QuantizeJob, spec: ModelSpec) -> dict[str, Any]:
    """What must be the same for a run to be gone on with."""
    files = [(Path(file).name, Path(file).stat().st_size, Path(file).stat().st_mtime_ns) for file in spec.files]
    return {
        "files": [list(map(str, file)) for file in files],
        "to": str(job.precision),
        "text": hashlib.sha256(job.text.encode()).hexdigest(),
        "group": job.group,
        "kv": job.kv,
    }


class _Writer:
    """Shards by number, each whole or not there. Owner: quantize."""

    def __init__(self, folder: Path, count: int) -> None:
        self._folder = folder
        self._count = count

    def path(self, number: int) -> Path:
        return self._folder / f"model-{number + 1:05d}-of-{self._count:05d}.safetensors"

    def has_all(self, numbers: range) -> bool:
        return all(self.path(number).is_file() for number in numbers)

    def write(self, number: int, make: Callable[[], dict[str, Tensor]]) -> None:
        """Nothing where it is there already."""
        path = self.path(number)
        if path.is_file():
            return
        unfinished = path.with_suffix(UNFINISHED)
        save_file(make(), unfinished, metadata={"format": "pt"})
        with unfinished.open("rb") as file:
            os.fsync(file.fileno())  # a shard that is there is believed after a loss of power too
        unfinished.rename(path)

    def finish(self, mode: int) -> None:
        """Write the index. mode: whom the other files are for; the library writes shards for their owner alone."""
        names: dict[str, str] = {}
        for number in range(self._count):
            self.path(number).chmod(stat.S_IMODE(mode))
            with safe_open(self.path(number), framework="pt") as shard:
                names |= dict.fromkeys(shard.keys(), self.path(number).name)
        size = sum(self.path(number).stat().st_size for number in range(self._count))
        index = {"metadata": {"total_size": size}, "weight_map": names}
        (self._folder / INDEX_FILE).write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
