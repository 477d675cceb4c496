"""One quantisation from beginning to end: resumable, a shard a layer, nothing left where it fails for good."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from engine.devices import open_device
from engine.errors import Conflict, InvalidParameter
from engine.quant.encode import DEFAULT_GROUPS
from engine.quantize.folder import check_folder, write_beside
from engine.quantize.kv_form import refuse_unlearnable, stored_kv_scales
from engine.quantize.layer_rounding import LayerRounding
from engine.quantize.learning import LayerInputs, learn
from engine.quantize.source import Source
from engine.quantize.stored_form import FORMATS, GROUPED, quantisation_config
from engine.spec import read_spec
from engine.spec.hf_folder import INDEX_FILE
from engine.spec.model_spec import ModelSpec
from engine.spec.precision import WeightPrecision, fp8_group
from engine.text.loading import load_text

STATE_FILE = "quantize.json"
PARTIAL = ".partial"
CALIBRATION_TOKENS = 8192
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
    Raises: Conflict when job.out is there, or what was begun is of another job; UnsupportedFormat
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
    device = opened.torch_device
    source = Source(spec, lambda done, total: report("reading", done, total), device, keeps_matrices=keeps)
    partial = _begin(job, spec)
    writer = _Writer(partial, len(spec.layers) + 2)
    rounding = LayerRounding(source, job.precision, 0 if keeps else _group(job, source))
    writer.write(0, lambda: {t.name: t.numbers for t in source.of_model(("embed",))})
    source.release()

    def tensors(index: int, inputs: LayerInputs | None) -> dict[str, Tensor]:
        made = rounding.tensors(index, source.layer(spec.layers[index]), inputs)
        if inputs is None or inputs.kv_scales is None:
            return made
        return made | stored_kv_scales(source.attention_module(index), inputs.kv_scales)

    def write_layer(index: int, inputs: LayerInputs | None) -> None:
        writer.write(index + 1, lambda: tensors(index, inputs))
        source.release()
        report("quantising", index + 1, len(spec.layers))

    if job.text:
        if not writer.has_all(range(1, len(spec.layers) + 1)):
            tokens = load_text(spec).encode(job.text)[:CALIBRATION_TOKENS]
            learn(
                spec,
                tokens,
                job.precision,
                device,
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
    writer.write(len(spec.layers) + 1, lambda: {t.name: t.numbers for t in source.of_model(last)})
    source.release()
    writer.write_index()
    write_beside(spec, partial, quantisation_config(job.precision, rounding.group, source.kept_modules(), job.kv))
    check_folder(spec, partial)
    (partial / STATE_FILE).unlink()
    partial.rename(job.out)
    return read_spec(job.out)


def group_for(widths: set[int], most: int) -> int:
    """The largest group up to most that divides all widths; one for all, as a configuration states it."""
    return next((size for size in GROUPS if size <= most and all(width % size == 0 for width in widths)), GROUPS[-1])


def _group(job: QuantizeJob, source: Source) -> int:
    """Raises: InvalidParameter for a group that the precision or the model's widths do not have."""
    if job.group is None:
        usual = DEFAULT_GROUPS["int4"]
        if job.precision is WeightPrecision.FP8:
            usual = fp8_group(source.spec.hidden_size)
        return group_for(source.widths(), usual) if usual else 0
    if job.precision not in GROUPED:
        raise InvalidParameter(
            f"{job.precision} has a multiplier a row.", f"Groups are of {' and '.join(GROUPED)}.", param="group"
        )
    unfit = [width for width in source.widths() if job.group and width % job.group]
    if job.group < 0 or job.group % 16 or unfit:
        raise InvalidParameter(
            f"Groups of {job.group} do not divide a matrix's width of {min(unfit, default=0):,} in sixteens.",
            f"Use one of {', '.join(str(size) for size in GROUPS)}, or 0 for rows.",
            param="group",
        )
    return job.group


def _begin(job: QuantizeJob, spec: ModelSpec) -> Path:
    """The folder that is worked in, new or of the same job."""
    if job.out.exists():
        raise Conflict(f"{job.out} is there already.", "Give another --out, or remove it.")
    partial = job.out.with_name(job.out.name + PARTIAL)
    files = [(Path(file).name, Path(file).stat().st_size, Path(file).stat().st_mtime_ns) for file in spec.files]
    asked = {
        "files": [list(map(str, file)) for file in files],
        "to": str(job.precision),
        "text": hashlib.sha256(job.text.encode()).hexdigest(),
        "group": job.group,
        "kv": job.kv,
    }
    state = partial / STATE_FILE
    if partial.exists() and job.restart:
        shutil.rmtree(partial)
    if state.is_file() and json.loads(state.read_text(encoding="utf-8")) != asked:
        raise Conflict(
            f"{partial} holds what was begun with another model, text or precision.",
            "Finish that one, or start anew with --restart.",
        )
    if partial.exists() and not state.is_file():
        raise Conflict(f"{partial} is there, and is not of a quantisation.", "Give another --out, or remove it.")
    partial.mkdir(parents=True, exist_ok=True)
    state.write_text(json.dumps(asked), encoding="utf-8")
    return partial


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
        unfinished = path.with_suffix(".unfinished")
        save_file(make(), unfinished, metadata={"format": "pt"})
        unfinished.rename(path)

    def write_index(self) -> None:
        names: dict[str, str] = {}
        for number in range(self._count):
            with safe_open(self.path(number), framework="pt") as shard:
                names |= dict.fromkeys(shard.keys(), self.path(number).name)
        size = sum(self.path(number).stat().st_size for number in range(self._count))
        index = {"metadata": {"total_size": size}, "weight_map": names}
        (self._folder / INDEX_FILE).write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
