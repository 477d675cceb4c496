"""Ours beside other engines on one GGUF file: `python -m bench.peers --gguf FILE --threads 2`.

Each peer runs in its own process, one after the other, in turns if --rounds says so; the best of its turns counts. On
a shared machine only the ratios of one run mean something. A peer that is not there is named with the reason.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from bench.peer_process import PEERS
from bench.provenance import provenance
from bench.worker_figures import ours
from engine.errors import BayardError

PEER_LIMIT_S = 600
HIGHER_IS_BETTER = ("prefill_tok_s", "decode_tok_s", "streams8_decode_tok_s")

Line = dict[str, object]


def peer_figures(peer: str, path: Path, threads: int, pythons: list[str]) -> Line:
    """A peer's line, measured by the first interpreter in which it works; with "skipped" when there is none."""
    reasons = []
    for python in pythons:
        script = Path(__file__).with_name("peer_process.py")
        command = [python, str(script), peer, str(path), str(threads)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PEER_LIMIT_S)
        except OSError as error:
            reasons.append(f"{python}: {error.strerror}")
        except subprocess.TimeoutExpired:
            reasons.append(f"{python}: took more than {PEER_LIMIT_S} s")
        else:
            if not done.returncode:
                line: Line = json.loads(done.stdout.strip().splitlines()[-1])
                return line
            reasons.append(f"{python}: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    return {"peer": peer, "threads": threads, "skipped": "; ".join(reasons)}


def our_figures(path: Path, threads: int, activation: str) -> Line:
    try:
        return ours(path, threads, activation)
    except BayardError as error:
        return {"peer": "ours", "threads": threads, "skipped": str(error)}


def better(best: Line | None, line: Line) -> Line:
    """The best of each figure over turns; a turn that failed counts only if none worked."""
    if best is None or "skipped" in best:
        return line
    if "skipped" in line:
        return best
    merged = dict(line)
    for key in HIGHER_IS_BETTER:
        values = [value for value in (best.get(key), line.get(key)) if isinstance(value, int | float)]
        if values:
            merged[key] = max(values)
    return merged


def table(lines: list[Line]) -> str:
    """For reading on a terminal; ratios are against llama.cpp if it ran."""
    base = next((line for line in lines if str(line["peer"]).startswith("llama.cpp") and "skipped" not in line), None)
    rows = [f"{'peer':<46}{'prefill tok/s':>16}{'decode tok/s':>16}{'8 streams':>16}{'of read rate':>16}"]
    for line in lines:
        if "skipped" in line:
            rows.append(f"{line['peer']!s:<46}skipped: {line['skipped']}")
            continue
        cells = []
        for key, of in (
            ("prefill_tok_s", "prefill_tok_s"),
            ("decode_tok_s",) * 2,
            ("streams8_decode_tok_s", "decode_tok_s"),
        ):
            value, reference = line.get(key), base.get(of) if base is not None else None
            if not isinstance(value, int | float):
                cells.append("")
            elif isinstance(reference, int | float) and line is not base:
                cells.append(f"{value:.1f} ({value / reference:.2f}x)")
            else:
                cells.append(f"{value:.1f}")
        share = line.get("read_share")
        cells.append(f"{share:.0%}" if isinstance(share, int | float) else "")
        rows.append(f"{line['peer']!s:<46}" + "".join(f"{cell:>16}" for cell in cells))
    return "\n".join(rows)


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("--gguf", required=True, type=Path)
    parser.add_argument("--threads", default=2, type=int)
    parser.add_argument("--peers", default="ours,llamacpp,transformers")
    parser.add_argument("--peer-python", action="append", default=[], help="another interpreter to look for peers in")
    parser.add_argument("--activation", default="exact", choices=("exact", "int8"), help="of ours")
    parser.add_argument("--rounds", default=1, type=int, help="turns of every peer")
    parser.add_argument("--json", action="store_true", help="one JSON line a peer")
    arguments = parser.parse_args(words)
    names = arguments.peers.split(",")
    unknown = [name for name in names if name not in ("ours", *PEERS)]
    if unknown:
        parser.error(f"unknown peer {unknown[0]}; known: ours, {', '.join(PEERS)}")
    if not arguments.gguf.is_file():
        parser.error(f"there is no file {arguments.gguf}")
    pythons = [*arguments.peer_python, sys.executable]
    origin = {**provenance("peers"), "model": arguments.gguf.name, "activation": arguments.activation}
    best: dict[str, Line] = {}
    for _ in range(arguments.rounds):
        for name in names:
            if name == "ours":
                line = our_figures(arguments.gguf, arguments.threads, arguments.activation)
            else:
                line = peer_figures(name, arguments.gguf, arguments.threads, pythons)
            best[name] = better(best.get(name), line)
    if arguments.json:
        for name in names:
            print(json.dumps({**best[name], "origin": origin}), flush=True)
    else:
        print(f"{origin['machine']}, commit {origin['commit']}, {arguments.gguf.name}, {arguments.threads} threads")
        print(table([best[name] for name in names]))
    return 1 if "skipped" in best.get("ours", {}) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
