"""What each precision costs a real model: `python -m bench.quality --model FILE > bench/results/quality.jsonl`.

The forms that matrices are rounded to at load, and the folders that `bayard quantize` writes with and without learning,
each beside the stored weights on the built-in text. On a CPU forms at load are rounded to the kinds its kernels read;
folders are of the kinds that accelerators read. One JSON line a form, the first says where they come from.
With --caches: what a KV cache of bytes costs, with multipliers of its own and with ones learnt from a text.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from bench.provenance import provenance
from daemon.planning.kv_bytes import kv_bytes_per_token
from engine.errors import BayardError
from engine.quantize.job import QuantizeJob, quantize
from engine.quantize.quality import DEFAULT_TOKENS, compare
from engine.quantize.texts import calibration_text, evaluation_text
from engine.spec.kv_scales import KvKind, KvScales
from engine.spec.precision import WeightPrecision

# What is written -> (precision, whether it learns from the calibration text, group; None: the usual one)
WRITTEN: dict[str, tuple[WeightPrecision, bool, int | None]] = {
    "fp8": (WeightPrecision.FP8, True, None),
    "fp8, to the nearest": (WeightPrecision.FP8, False, None),
    "fp8, a multiplier a row": (WeightPrecision.FP8, True, 0),
    "fp8, a multiplier a row, to the nearest": (WeightPrecision.FP8, False, 0),
    "int8": (WeightPrecision.INT8, True, None),
    "int8, to the nearest": (WeightPrecision.INT8, False, None),
    "int8-mixed": (WeightPrecision.INT8_MIXED, True, None),
    "int4": (WeightPrecision.INT4, True, None),
    "int4, to the nearest": (WeightPrecision.INT4, False, None),
    "int4, groups of 32": (WeightPrecision.INT4, True, 32),
    "int4, groups of 32, to the nearest": (WeightPrecision.INT4, False, 32),
}


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.quality", description=__doc__)
    add = parser.add_argument
    add("--model", required=True, type=Path)
    add("--device", default="cpu")
    add("--tokens", default=DEFAULT_TOKENS, type=int)
    add("--forms", default=list(WRITTEN), type=lambda text: text.split(";"), help="; between them")
    add("--caches", action="store_true")
    arguments = parser.parse_args(words)
    bench = "caches" if arguments.caches else "quality"
    print(json.dumps({**provenance(bench, arguments.device), "model": arguments.model.name}), flush=True)
    try:
        with tempfile.TemporaryDirectory(prefix="bayard-quality-") as folder:
            if arguments.caches:
                _caches(arguments, Path(folder))
                return 0
            for number, name in enumerate(arguments.forms):
                precision, learns, group = WRITTEN[name]
                out = Path(folder) / f"{number}"
                begun = time.monotonic()
                text = calibration_text() if learns else ""
                job = QuantizeJob(arguments.model, precision, out, text, arguments.device, group=group)
                quantize(job, lambda *_: None)
                seconds = round(time.monotonic() - begun, 1)
                forms = ("stored", str(out))
                found = compare(
                    arguments.model,
                    forms,
                    evaluation_text(),
                    "built in",
                    device=arguments.device,
                    tokens=arguments.tokens,
                )
                print(json.dumps({"form": name, "quantise_s": seconds, **asdict(found)}), flush=True)
    except BayardError as error:
        print(f"{arguments.model}: {error}", file=sys.stderr)
        return 1
    return 0


def _caches(arguments: argparse.Namespace, folder: Path) -> None:
    for kind in KvKind:
        out = folder / kind
        begun = time.monotonic()
        job = QuantizeJob(
            arguments.model, WeightPrecision.STORED, out, calibration_text(), arguments.device, kv=str(kind)
        )
        written = quantize(job, lambda *_: None)
        seconds = round(time.monotonic() - begun, 1)
        for scales in (KvScales.DYNAMIC, KvScales.CALIBRATED):
            found = compare(
                arguments.model,
                (str(out), f"{out}+kv-{kind}-{scales}"),
                evaluation_text(),
                "built in",
                device=arguments.device,
                tokens=arguments.tokens,
            )
            told = {"cache": str(kind), "scales": str(scales), "token_bytes": kv_bytes_per_token(written, kind)}
            print(json.dumps(told | {"quantise_s": seconds, **asdict(found)}), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
