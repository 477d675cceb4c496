"""Figures of the offline benchmark as rows: each beside its ceiling, and where a step's time goes."""

from __future__ import annotations

from typing import Any

from bench.ceilings import BITS, EIGHT_BIT_GAIN, Model, Rates, rates_of, shape_spec
from engine.errors import ConfigError

Line = dict[str, Any]
Table = tuple[list[str], list[list[str]], str]  # heads, rows, a note below

PROMPT, OUTPUTS = 256, (32, 160)  # of the decode figures


def figure_rows(origin: Line, figures: list[Line]) -> Table:
    """One row a figure. Raises: ConfigError for one it does not know"""
    ceilings = Ceilings.of(origin)
    shown = [line for line in figures if line.get("fig") != "profile"]
    rows = [_figure(line, str(origin.get("model", "?"))) for line in shown]
    heads = ["figure", "work", "time", "tokens/s"]
    if ceilings is None:
        return heads, rows, ""
    told = [[*row, *_beside(ceilings.seconds(line), _took_s(line))] for row, line in zip(rows, shown, strict=True)]
    note = (
        f"A ceiling is the bytes that must be read at {ceilings.rates.copy_bytes_s / 1e12:g} TB/s or the operations at "
        f"{ceilings.gained / 1e12:,.0f} TFLOP/s, whichever takes longer; of a run all prompts and then all decodes at "
        "once, in no more steps than answers have tokens."
    )
    return [*heads, "ceiling", "reached"], told, note


def part_rows(figures: list[Line]) -> Table:
    """Where a step's time goes, by kind of kernel."""
    found = [line for line in figures if line.get("fig") == "profile" and line.get("parts")]
    kinds: list[str] = []
    for line in found:
        kinds += [kind for kind in line["parts"] if kind not in kinds]
    rows = []
    for line in found:
        work = f"decode, batch {line['batch']}" if line["of"] == "decode" else f"prefill, {line['tokens']:,} tokens"
        shares = [f"{line['parts'].get(kind, 0.0) / line['ms']:.0%}" for kind in kinds]
        rows.append([work, f"{line['ms']:,.2f} ms", *shares, f"{max(0.0, 1 - line['busy_ms'] / line['ms']):.0%}"])
    twice = any(sum(line["parts"].values()) > line["busy_ms"] * 1.01 for line in found)
    note = (
        "Shares of a step's time, from a profile of steps as they run; what starts while the kernel before is at work "
        f"counts {'in full' if twice else 'from the end of that one'}. The last column is the time in which no kernel "
        "runs."
    )
    return ["step", "time", *kinds, "between kernels"], rows, note


class Ceilings:
    """What a result's figures could be at best. Of results of a known shape on a device whose rates are known."""

    def __init__(self, model: Model, rates: Rates, gain: float) -> None:
        self.rates = rates
        self.gained = rates.products_s * gain
        self._model, self._gain = model, gain

    @classmethod
    def of(cls, origin: Line) -> Ceilings | None:
        opts = origin.get("opts", {})
        spec = shape_spec(str(origin.get("model")), str(opts.get("scale", "full")))
        rates, weights = rates_of(str(origin.get("machine", ""))), str(opts.get("weights", "stored"))
        if spec is None or rates is None or weights not in BITS:
            return None
        return cls(Model(spec, weights), rates, 1.0 if opts.get("activation", "exact") == "exact" else EIGHT_BIT_GAIN)

    def seconds(self, line: Line) -> float | None:
        match line["fig"]:
            case "decode":
                work = self._model.decode(line["batch"], PROMPT + sum(OUTPUTS) / 2)
            case "prefill":
                work = self._model.prefill(line["tokens"])
            case "throughput":
                longest = line.get("longest_out", line["outputs"] / line["nreq"])
                return self._model.run_seconds(
                    line["nreq"], line["inputs"], line["outputs"], longest, self.rates, self._gain
                )
            case _:
                return None
        return work.seconds(self.rates, self._gain)


def _took_s(line: Line) -> float:
    match line["fig"]:
        case "throughput":
            return float(line["s"])
        case "decode":
            return float(line["ms_per_step"]) / 1e3
        case "prefill":
            return float(line["ms"]) / 1e3
    return 0.0


def _beside(best_s: float | None, took_s: float) -> list[str]:
    if best_s is None or not took_s:
        return ["", ""]
    return [f"{best_s:,.2f} s" if best_s >= 1 else f"{best_s * 1e3:,.2f} ms", f"{best_s / took_s:.0%}"]


def _figure(line: Line, model: str) -> list[str]:
    match line.get("fig"):
        case "decode":
            return ["decode", f"batch {line['batch']}", f"{line['ms_per_step']:.2f} ms a step", f"{line['tok_s']:,.0f}"]
        case "prefill":
            return ["prefill", f"{line['tokens']:,} tokens", f"{line['ms']:,.1f} ms", f"{line['tok_s']:,.0f}"]
        case "throughput":
            work = f"{line['nreq']} requests, {line['inputs']:,} tokens in, {line['outputs']:,} out"
            return ["throughput", work, f"{line['s']:,.2f} s", f"{line['out_tok_s']:,.0f} out"]
        case "gap":
            limit = f"steps within {line['max_step_ms']:g} ms" if line["max_step_ms"] else "steps without a limit"
            work = f"{line['entering']:,} tokens beside {line['batch']} streams, {limit}"
            took = f"{line['longest_ms']:,.1f} ms (usual {line['usual_ms']:,.1f})"
            return ["longest gap", work, took, f"first token after {line['first_token_ms']:,.0f} ms"]
        case "steady":
            counts = line["allocated"]
            told = "not counted here" if counts is None else f"{counts['segments']} pieces of device memory"
            return ["allocated", f"{line['steps']} decode steps of {line['batch']} streams", told, ""]
        case other:
            raise ConfigError(f"The result of {model} holds an unknown figure {other!r}.", "Update the report.")
