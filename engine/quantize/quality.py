"""The price of a precision: perplexity, token agreement and divergence of two forms of a model on one text.

`python -m engine.quantize.quality MODEL --first stored --second int4` prints one JSON object. A form is a precision
that matrices are rounded to at load, or the path of another checkpoint with the same tokens; and after it, as in
stored+kv-fp8 or FOLDER+kv-int8-dynamic, what the KV cache is kept in.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from engine.devices import open_device
from engine.errors import BayardError, InvalidParameter, StoreError
from engine.models import load_model
from engine.models.loading import KV_NAMES
from engine.quantize.on_load import odd_widths, rounding_of
from engine.quantize.text_file import first_tokens, read_text
from engine.quantize.text_pass import batch_of, window_tokens, windows_of
from engine.quantize.texts import evaluation_text
from engine.quantize.words import Words, run, told
from engine.spec import read_spec
from engine.spec.kv_scales import KvScales, calibrated_scales
from engine.spec.model_spec import ModelSpec
from engine.spec.precision import Activations, WeightPrecision
from engine.text.loading import load_text

DEFAULT_TOKENS = 2048
KV_MARK = "+kv-"
KV_TYPES = {kind: dtype for dtype, kind in KV_NAMES.items()}
Report = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Form:
    """What a name on the command line stands for."""

    name: str
    path: Path
    weights: str
    kv: str = ""  # "fp8", "int8"; "": what activations are
    kv_scales: str = KvScales.AUTO


@dataclass(frozen=True, slots=True)
class Quality:
    """Second against first. KL is of the first's distribution to the second's, in nats a token."""

    model: str
    first: str
    second: str
    text: str
    tokens: int  # predicted ones
    first_perplexity: float
    second_perplexity: float
    perplexity_change: float  # second / first - 1
    agreement: float  # share of places where both hold the same token for the likeliest
    mean_kl: float
    largest_kl: float
    first_bytes: int
    second_bytes: int
    notes: list[str]  # what is not as a form's name says


def form_of(name: str, model_path: Path) -> Form:
    """Raises: InvalidParameter for a name that is neither."""
    weights, mark, cache = name.partition(KV_MARK)
    kv, _, scales = cache.partition("-")
    if mark and (kv not in KV_TYPES or scales not in ("", *KvScales)):
        raise InvalidParameter(
            f"{name!r} names no KV cache.",
            f"Add {' or '.join(KV_MARK + kind for kind in KV_TYPES)}, and -dynamic or -calibrated if it matters.",
            param="form",
        )
    if weights in tuple(WeightPrecision):
        return Form(name, model_path, weights, kv, scales or KvScales.AUTO)
    path = Path(weights)
    if not weights or not path.exists():
        raise InvalidParameter(
            f"{name!r} is no precision and no checkpoint.",
            f"Precisions are {', '.join(WeightPrecision)}; {KV_MARK}fp8 or {KV_MARK}int8 behind one names a cache.",
            param="form",
        )
    return Form(path.name + name[len(weights) :], path, WeightPrecision.STORED, kv, scales or KvScales.AUTO)


def compare(
    model_path: Path,
    names: tuple[str, str],
    text: str,
    text_name: str,
    *,
    device: str = "cpu",
    activation: str = "exact",
    tokens: int = DEFAULT_TOKENS,
    report: Report = lambda stage, done, total: None,
) -> Quality:
    """Run both over the text, one after the other; the first's logits wait in a file.

    Blocks: for two loads and two forwards
    Raises: BayardError, from loading; InvalidParameter when the two do not read the text alike
    """
    forms = [form_of(name, model_path) for name in names]
    specs = [read_spec(form.path) for form in forms]
    cut = [first_tokens(load_text(spec).encode, text, tokens) for spec in specs]
    if cut[0] != cut[1] or specs[0].vocab_size != specs[1].vocab_size:
        raise InvalidParameter(
            f"{forms[0].name} and {forms[1].name} do not have the same tokens.", "Compare forms of one model."
        )
    windows = windows_of(cut[0], window_tokens(*specs))
    predicted = sum(len(window) - 1 for window in windows)
    if not predicted:
        raise InvalidParameter("The text has fewer than two tokens.", "Give a longer one.", param="text")
    sums = _Sums()
    with tempfile.TemporaryDirectory(prefix="bayard-quality-") as folder:
        shape = (predicted, specs[0].vocab_size)
        kept = _kept(Path(folder) / "logits", shape)
        row = 0
        for index, logits in enumerate(_logits(specs[0], forms[0], windows, device, activation)):
            kept[row : row + len(logits)] = logits.to("cpu").numpy()
            row += len(logits)
            report(forms[0].name, index + 1, len(windows))
        row = 0
        for index, logits in enumerate(_logits(specs[1], forms[1], windows, device, activation)):
            first = torch.from_numpy(np.array(kept[row : row + len(logits)]))
            sums.add(first, logits.to("cpu"), torch.tensor(windows[index][1:]))
            row += len(logits)
            report(forms[1].name, index + 1, len(windows))
        del kept
    perplexities = [float(np.exp(loss / predicted)) for loss in sums.losses]
    return Quality(
        model=specs[0].name,
        first=forms[0].name,
        second=forms[1].name,
        text=text_name,
        tokens=predicted,
        first_perplexity=perplexities[0],
        second_perplexity=perplexities[1],
        perplexity_change=perplexities[1] / perplexities[0] - 1.0,
        agreement=sums.agreed / predicted,
        mean_kl=sums.kl / predicted,
        largest_kl=sums.largest_kl,
        first_bytes=specs[0].weight_bytes,
        second_bytes=specs[1].weight_bytes,
        notes=sorted(
            {
                note
                for form, spec in zip(forms, specs, strict=True)
                for note in odd_widths(spec, WeightPrecision(form.weights))
            }
        ),
    )


def _kept(path: Path, shape: tuple[int, int]) -> np.memmap[tuple[int, int], np.dtype[np.float32]]:
    """A file of float32 whose room is there: a map that grows past a full disk would end the process.

    Raises: StoreError
    """
    size_bytes = shape[0] * shape[1] * 4
    try:
        with path.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, size_bytes)
    except OSError as error:
        raise StoreError(
            f"{path.parent} has no room for {size_bytes:,} bytes of the first form's logits: {error}.",
            "Measure fewer --tokens, or set TMPDIR to a folder with room.",
        ) from error
    return np.memmap(path, dtype=np.float32, mode="r+", shape=shape)


class _Sums:
    """Over all predicted tokens. Owner: compare."""

    def __init__(self) -> None:
        self.losses = [0.0, 0.0]
        self.agreed = 0
        self.kl = 0.0
        self.largest_kl = 0.0

    def add(self, first: Tensor, second: Tensor, wanted: Tensor) -> None:
        """Shapes: first, second [n, vocab] float32; wanted [n]"""
        both = [torch.log_softmax(logits.to(torch.float64), dim=-1) for logits in (first, second)]
        for place, found in enumerate(both):
            self.losses[place] -= float(found.gather(1, wanted.unsqueeze(1)).sum())
        self.agreed += int((first.argmax(dim=-1) == second.argmax(dim=-1)).sum())
        kl = (both[0].exp() * (both[0] - both[1])).sum(dim=-1).clamp_min(0.0)
        self.kl += float(kl.sum())
        self.largest_kl = max(self.largest_kl, float(kl.max()))


def _logits(
    spec: ModelSpec, form: Form, windows: Sequence[Sequence[int]], device_name: str, activation: str
) -> Iterator[Tensor]:
    """Of each window, those that predict its next tokens: [n - 1, vocab] float32"""
    device = open_device(device_name)
    dtype = device.default_dtype
    capabilities = device.capabilities.names()
    rounding, _ = rounding_of(form.weights, spec, device.torch_device, dtype, lambda done, total: None, capabilities)
    calibrated, _ = calibrated_scales(spec, form.kv_scales, form.kv)
    kv_dtype = KV_TYPES.get(form.kv, dtype)
    model = load_model(
        spec,
        device.torch_device,
        dtype,
        lambda done, total: None,
        kv_dtype=kv_dtype,
        activation=activation,
        capabilities=capabilities,
        rounding=rounding,
        calibrated_kv=calibrated,
    )
    for window in windows:
        yield model.forward(batch_of(spec, [window], device.torch_device, kv_dtype))[:-1]


def main(words: list[str]) -> int:
    parser = Words(prog="python -m engine.quantize.quality", description=__doc__)
    add = parser.add_argument
    add("model", type=Path)
    add("--first", required=True)
    add("--second", required=True)
    add("--text", type=Path)
    add("--tokens", type=int, default=DEFAULT_TOKENS)
    add("--device", default="cpu")
    add("--activation", default=str(Activations.EXACT), choices=list(map(str, Activations)))

    def report(stage: str, done: int, total: int) -> None:
        print(json.dumps({"stage": stage, "done": done, "total": total}), file=sys.stderr, flush=True)

    try:
        arguments = parser.parse_args(words)
        text = evaluation_text() if arguments.text is None else read_text(arguments.text, arguments.tokens, "text")
        found = compare(
            arguments.model,
            (arguments.first, arguments.second),
            text,
            "built in" if arguments.text is None else arguments.text.name,
            device=arguments.device,
            activation=arguments.activation,
            tokens=arguments.tokens,
            report=report,
        )
    except BayardError as error:
        print(told(error))
        return 1
    print(json.dumps(asdict(found)))
    return 0


if __name__ == "__main__":
    run(main, sys.argv[1:])
