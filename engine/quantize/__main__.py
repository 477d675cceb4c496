"""`python -m engine.quantize MODEL --to int4 --out DIR`: one quantisation, telling how far it is in JSON lines.

The daemon's command runs it in a process of its own, because the control plane never imports torch.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from engine.devices.host_heap import keep_nothing_large
from engine.errors import BayardError
from engine.quantize.job import CALIBRATION_TOKENS, QuantizeJob, quantize
from engine.quantize.text_file import read_text
from engine.quantize.texts import calibration_text
from engine.quantize.words import Words, run, told
from engine.spec.precision import WeightPrecision, WrittenPrecision

NOTHING = "none"


def main(words: list[str]) -> int:
    parser = Words(prog="python -m engine.quantize", description=__doc__)
    add = parser.add_argument
    add("model", type=Path)
    add("--to", default=str(WrittenPrecision.STORED), choices=list(map(str, WrittenPrecision)))
    add("--out", required=True, type=Path)
    add(
        "--calibrate",
        default="",
        help=f"a text file, whose first {CALIBRATION_TOKENS:,} tokens are learnt from; {NOTHING}: nothing is learnt; "
        "else a built-in one",
    )
    add("--device", default="cpu")
    add("--restart", action="store_true")
    add("--group", type=int, help="of fp8 and int4: neighbours with one multiplier; 0: a row; else what is usual")
    add("--kv", default="", help="fp8 or int8: learn multipliers for such a KV cache too, or alone without --to")

    def report(stage: str, done: int, total: int) -> None:
        print(json.dumps({"stage": stage, "done": done, "total": total}), flush=True)

    keep_nothing_large()
    try:
        arguments = parser.parse_args(words)
        text = _text(arguments.calibrate)
        job = QuantizeJob(
            arguments.model,
            WeightPrecision(arguments.to),
            arguments.out,
            text,
            arguments.device,
            arguments.restart,
            arguments.group,
            arguments.kv,
        )
        written = quantize(job, report)
    except BayardError as error:
        print(told(error), flush=True)
        return 1
    found = {"path": str(arguments.out), "weight_bytes": written.weight_bytes, "source_dtype": written.source_dtype}
    print(json.dumps({"written": found}), flush=True)
    return 0


def _text(calibrate: str) -> str:
    if calibrate == NOTHING:
        return ""
    if not calibrate:
        return calibration_text()
    return read_text(Path(calibrate), CALIBRATION_TOKENS, "calibrate")


if __name__ == "__main__":
    run(main, sys.argv[1:])
