"""Results to a page: `python -m bench.report bench/results/*.jsonl > docs/performance.md`.

Reads the JSON lines of the benchmarks named in SECTIONS (each names its machine and commit) and writes one table a
result. The page is generated: change a result or this file, not the page.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from bench.report_control import idle_rows, serve_rows, soak_rows
from bench.report_kernels import kernel_tables
from bench.report_offline import figure_rows, part_rows
from bench.report_planner import HEADS, planner_rows
from engine.errors import ConfigError

Line = dict[str, Any]

HEAD = """# Performance

Measured, with the machine, the commit and (of newer results) the command beside each table. Absolute times hold for
their machine only; on a shared machine only the ratios within one table do, and a load average above the number of
cores says that other work took part of the machine meanwhile: small steps then wait for their turn, and decoding
suffers most. This page is written from `bench/results/` by `python -m bench.report`.
"""


def read_result(path: Path) -> list[Line]:
    """One file's lines. Raises: ConfigError naming the line that is no JSON object, or a result of no known origin."""
    lines = []
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not text.strip():
            continue
        try:
            line = json.loads(text)
        except json.JSONDecodeError as error:
            raise ConfigError(f"{path.name}, line {number} is no JSON: {error}.", "Measure again.") from error
        if not isinstance(line, dict):
            raise ConfigError(f"{path.name}, line {number} is no JSON object.", "Measure again.")
        lines.append(line)
    if not lines or _bench(lines) not in SECTIONS:
        raise ConfigError(f"{path.name} does not say which benchmark it is of.", "Keep the first line of the output.")
    return lines


def _bench(lines: list[Line]) -> str:
    return str(lines[0].get("origin", lines[0]).get("bench"))


def page(results: Iterable[list[Line]]) -> str:
    """The whole document."""
    sections = [HEAD]
    for lines in results:
        sections.append(SECTIONS[_bench(lines)](lines))
    return "\n".join(sections)


def peers_section(lines: list[Line]) -> str:
    """Ours beside peers, with ratios against llama.cpp."""
    origin = lines[0]["origin"]
    base = next((line for line in lines if line["peer"].startswith("llama.cpp") and "skipped" not in line), {})
    rows = []
    for line in lines:
        if "skipped" in line:
            rows.append([line["peer"], f"not measured: {line['skipped']}", "", "", "", ""])
            continue
        beyond = line.get("rss_beyond_file_bytes")
        rows.append(
            [
                line["peer"],
                _ratio(line.get("prefill_tok_s"), base.get("prefill_tok_s"), line is base),
                _ratio(line.get("decode_tok_s"), base.get("decode_tok_s"), line is base),
                _ratio(line.get("streams8_decode_tok_s"), base.get("decode_tok_s"), line is base),
                "" if beyond is None else f"{beyond / 1e6:,.0f} MB",
                "" if line.get("read_share") is None else f"{line['read_share']:.0%}",
            ]
        )
    title = f"## {origin['model']}, {lines[0]['threads']} CPU threads, beside peers"
    heads = ["engine", "prefill tok/s", "decode tok/s", "8 streams tok/s", "memory beyond the file", "of read rate"]
    activation = {"int8": "Our activations are rounded to 8 bits. ", "exact": "Our activations are exact. "}
    note = (
        f"{activation.get(str(origin.get('activation')), '')}Ratios are against llama.cpp's one stream in the same "
        "run; the share of the memory's measured read rate is that of decoding one stream."
    )
    return "\n".join([title, "", _origin(origin), "", *_table(heads, rows), "", note, ""])


def offline_section(lines: list[Line]) -> str:
    """One engine, one model: decode by batch, prefill by length, throughput, each beside what it could be at best."""
    origin, figures = lines[0], lines[1:]
    engine, model = origin.get("engine", "Bayard"), origin.get("model", "?")
    opts = origin.get("opts", {})
    scale, weights = opts.get("scale", "full"), opts.get("weights", "stored")
    activation = opts.get("activation", "exact")
    model += "" if scale == "full" else f" ({scale} sister)"
    model += "" if weights == "stored" else f" in {weights}"
    model += "" if activation == "exact" else f", {activation} activations"
    title = f"## {model}, {engine}, offline"
    if "refused" in origin:
        return "\n".join([title, "", f"Not run: {origin['refused']}", ""])
    parts = [title, "", _origin(origin), ""]
    for heads, rows, note in (figure_rows(origin, figures), part_rows(figures)):
        if rows:
            parts += [*_table(heads, rows), "", *([note, ""] if note else [])]
    return "\n".join(parts)


def host_section(lines: list[Line]) -> str:
    """The CPU kernels beside the host's own rates."""
    origin, rows = lines[0], []
    for line in lines[1:]:
        match line.get("fig"):
            case "read":
                rows.append(["plain read by all threads", "", f"{line['gb_s']:,.1f} GB/s", ""])
            case "product":
                rows.append([f"torch's product, {line['dtype']}", "", f"{line['tflops']:,.2f} TFLOP/s", ""])
            case "prefill":
                work = f"{line['kind']}, {line['activation']} activations"
                rows.append(["prompt of 512", work, f"{line['tflops']:,.2f} TFLOP/s", f"{line['share']:.0%}"])
            case "decode":
                work = f"{line['kind']}, {line['activation']} activations"
                rows.append(["one token", work, f"{line['gb_s']:,.1f} GB/s", f"{line['share']:.0%}"])
            case "attention":
                work = f"{line['context']:,} tokens of {line['kv']}"
                rows.append(["attention of a decode", work, f"{line['gb_s']:,.1f} GB/s", f"{line['share']:.0%}"])
            case other:
                raise ConfigError(f"The host's result holds an unknown figure {other!r}.", "Update bench/report.py.")
    title = "## CPU kernels beside the host's own rates, layers of an 8B model"
    note = "Shares are of the best product and of the plain read in the same run."
    table = _table(["figure", "work", "rate", "share of the host's"], rows)
    return "\n".join([title, "", _origin(origin), "", *table, "", note, ""])


def quality_section(lines: list[Line]) -> str:
    """What `bayard quantize` costs a model, form by form."""
    origin, forms = lines[0], lines[1:]
    rows = [
        [
            line["form"],
            f"{line['second_bytes'] / 1e6:,.0f} MB",
            *_price(line),
        ]
        for line in forms
    ]
    tokens, base = (forms[0]["tokens"], forms[0]["first_perplexity"]) if forms else (0, 0.0)
    note = (
        f"Perplexity over {tokens:,} tokens of the built-in text; of the stored weights it is {base:.3f}. Agreement is "
        "the share of places with the same likeliest token, divergence in nats a token. Activations are exact."
    )
    heads = ["written by `bayard quantize`", "size", "perplexity", "agreement", "divergence"]
    return "\n".join([f"## {origin['model']}, precisions", "", _origin(origin), "", *_table(heads, rows), "", note, ""])


def caches_section(lines: list[Line]) -> str:
    """What a KV cache of bytes costs a model."""
    origin, forms = lines[0], lines[1:]
    rows = [[f"{line['cache']}, {line['scales']}", f"{line['token_bytes']:,}", *_price(line)] for line in forms]
    tokens, base = (forms[0]["tokens"], forms[0]["first_perplexity"]) if forms else (0, 0.0)
    note = (
        f"Beside a cache of float32, with which perplexity over {tokens:,} tokens of the built-in text is {base:.3f}; "
        "weights and activations are the same. Calibrated multipliers are those of `bayard quantize --kv`."
    )
    heads = ["cache, multipliers", "bytes a token", "perplexity", "agreement", "divergence"]
    title = f"## {origin['model']}, KV caches of bytes"
    return "\n".join([title, "", _origin(origin), "", *_table(heads, rows), "", note, ""])


def _price(line: Line) -> list[str]:
    perplexity = f"{line['second_perplexity']:.3f} ({line['perplexity_change']:+.2%})"
    return [perplexity, f"{line['agreement']:.1%}", f"{line['mean_kl']:.4f}"]


def loading_section(lines: list[Line]) -> str:
    """How fast weights get to a device."""
    origin, rows = lines[0], []
    for line in lines[1:]:
        size = f"{line['bytes'] / 1e9:,.1f} GB"
        match line.get("fig"):
            case "load":
                share = "" if line["share"] is None else f"{line['share']:.0%} of the link's {line['link_gb_s']:g} GB/s"
                work = f"{size}{', the first in its process' if line['turn'] == 0 else ''}"
                rows.append(["weights to the device", work, f"{line['s']:.2f} s, {line['gb_s']:.1f} GB/s", share])
            case "first token":
                read_share = line.get("read_share")
                part = "" if read_share is None else f", {read_share:.0%} of the link's rate"
                split = f"imports {line['imported_s']:.1f} s, weights {line['read_s']:.2f} s{part}"
                rows.append(["start to first token", size, f"{line['first_token_s']:.1f} s", split])
            case other:
                raise ConfigError(f"The result of loading holds an unknown figure {other!r}.", "Update the report.")
    note = "From the page cache, through the ordinary loader; memory of the device is taken anew each time."
    table = _table(["figure", "of", "took", ""], rows)
    return "\n".join([f"## {origin['model']}, loading", "", _origin(origin), "", *table, "", note, ""])


def kernels_section(lines: list[Line]) -> str:
    """Quantised kernels beside plain ones."""
    parts = ["## Quantised kernels", "", _origin(lines[0]), ""]
    for what, heads, rows in kernel_tables(lines[1:]):
        parts += [f"{what}.", "", *_table(heads, rows), ""]
    return "\n".join(parts)


def tide_section(lines: list[Line]) -> str:
    """A compressed day under two static plans and under the schedule."""
    origin, runs = lines[0], lines[1:]
    base = {run["run"]: run for run in runs}
    rows = []
    for run in runs:
        day, night = run.get("day", {}), run.get("night", {})
        rows.append(
            [
                run["run"],
                _ratio(day.get("goodput_tok_s"), base.get("throughput", {}).get("day", {}).get("goodput_tok_s"), False),
                f"{day['ttft_p50_s']:.2f} / {day['ttft_p99_s']:.2f} s" if day else "",
                _ratio(night.get("tpot_p50_ms"), base.get("latency", {}).get("night", {}).get("tpot_p50_ms"), False),
                f"{run['lost']} of {run['requests']}",
            ]
        )
    moves = [
        [run["run"], f"{move['at_s']:.0f} s", move["how"], "" if move["gap_s"] is None else f"{move['gap_s']:.2f} s",
         str(move["to"])]
        for run in runs
        for move in run["moves"]
    ]  # fmt: skip
    heads = ["plan", "day, tok/s", "day, first token p50 / p99", "night, ms a token", "lost"]
    note = (
        f"A night, a day of {origin['opts']['day_s']:.0f} s with {origin['opts']['tide']:.0f} times the requests, and "
        "a night again. Day's ratios are against the throughput plan, night's against the latency plan. "
        f"![the tide]({origin.get('plot', 'tide.svg')})"
    )
    parts = [f"## {origin['model']}, a compressed day", "", _origin(origin), "", *_table(heads, rows), "", note, ""]
    if moves:
        parts += [*_table(["plan", "at", "move", "gap", "to"], moves), ""]
    return "\n".join(parts)


def planner_section(lines: list[Line]) -> str:
    """What the planner said of a model beside what it did."""
    table = _table(HEADS, planner_rows(lines[1:]))
    title = f"## {lines[1]['model']}: predictions"
    return "\n".join([title, "", _origin(lines[0]), "", *table, ""])


def serve_section(lines: list[Line]) -> str:
    """What the control plane adds."""
    table = _table(["figure", "seen"], serve_rows(lines[1]))
    return "\n".join(
        ["## The control plane beside an engine that answers at once", "", _origin(lines[0]), "", *table, ""]
    )


def soak_section(lines: list[Line]) -> str:
    """An hour of mixed load."""
    table = _table(["figure", "seen"], soak_rows(lines[1:-1], lines[-1]))
    note = "Streams, whole answers, embeddings, clients that leave or read slowly, wrong keys and bodies, listings, "
    note += "scrapes, admin reads, keys made and revoked, and every few minutes a killed worker."
    return "\n".join(["## The control plane under mixed load", "", _origin(lines[0]), "", *table, "", note, ""])


def idle_section(lines: list[Line]) -> str:
    """Connections that do nothing."""
    heads = ["run", "idle connections", "first token p50 / p99", "without a token", "daemon's memory", ""]
    table = _table(heads, idle_rows(lines[1:]))
    return "\n".join(["## Connections that do nothing beside clients that work", "", _origin(lines[0]), "", *table, ""])


def _origin(origin: Line) -> str:
    software = ", ".join(f"{name} {version}" for name, version in origin.get("software", {}).items() if version)
    facts = [origin["machine"], software, f"commit {origin['commit']}", origin["measured_at"]]
    if origin.get("load_average") is not None:
        facts.append(f"load average {origin['load_average']}")
    opts = {key: value for key, value in origin.get("opts", {}).items() if value not in ("full", "auto", "exact")}
    if origin.get("activation", "exact") != "exact":
        opts["activation"] = origin["activation"]
    if not origin.get("command"):  # it says them itself
        facts += [f"{key} {value}" for key, value in opts.items()]
    said = "; ".join(fact for fact in facts if fact) + "."
    return f"{said} `{origin['command']}`" if origin.get("command") else said


def _ratio(value: float | None, base: float | None, is_base: bool) -> str:
    if value is None:
        return ""
    return f"{value:,.1f}" if base is None or is_base else f"{value:,.1f} ({value / base:.2f}×)"


def _table(heads: list[str], rows: list[list[str]]) -> list[str]:
    def row(cells: list[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return [row(heads), "|" + "---|" * len(heads), *map(row, rows)]


SECTIONS: dict[str, Callable[[list[Line]], str]] = {
    "offline": offline_section,
    "peers": peers_section,
    "host": host_section,
    "quality": quality_section,
    "caches": caches_section,
    "kernels": kernels_section,
    "loading": loading_section,
    "tide": tide_section,
    "planner": planner_section,
    "serve": serve_section,
    "soak": soak_section,
    "idle": idle_section,
}


def main(words: list[str]) -> int:
    if not words:
        print("usage: python -m bench.report RESULT.jsonl ...", file=sys.stderr)
        return 2
    try:
        print(page([read_result(Path(word)) for word in words]), end="")
    except ConfigError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
