"""The planner's answer as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from daemon.planning.profile import Candidate, PlanAnswer, Profile
from daemon.planning.units import human_bytes, human_rate, human_seconds, human_tokens

_BAR_WIDTH = 60
_MARKS = "#=+%@"


def table(rows: Sequence[Sequence[str]], header: Sequence[str]) -> list[str]:
    """Aligned columns; the header in the first line."""
    every = [list(header), *[list(row) for row in rows]]
    widths = [max(len(row[column]) for row in every) for column in range(len(header))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in every]


def answer_text(answer: PlanAnswer) -> str:
    """Yes or no, the candidates, the chosen profile with its reasons and memory, and each why-not."""
    lines: list[str] = []
    chosen = answer.chosen
    if chosen is None:
        lines.append(f"{answer.model}: no, it does not run here as asked ({answer.strategy.value}).")
    else:
        lines.append(
            f"{answer.model}: yes, on {chosen.device_name} ({chosen.device}) for {answer.strategy.value}: "
            f"{_speed(chosen)}."
        )
    if answer.candidates:
        lines += ["", *_candidates(answer.candidates)]
    if chosen is not None:
        lines += ["", *memory_picture(chosen, answer), "", "why", *_indented(_choices(chosen))]
    if answer.why_not:
        lines += ["", "why not"]
        for refused in answer.why_not:
            nearest = f" Nearest: {refused.nearest}." if refused.nearest else ""
            lines.append(f"  {refused.candidate}: {refused.reason}.{nearest}")
    if answer.notes:
        lines += ["", "notes", *_indented(answer.notes)]
    return "\n".join(lines)


def _speed(chosen: Profile) -> str:
    speed = chosen.speed
    if not chosen.generates:
        return f"it embeds {human_rate(speed.prefill_tok_s)} tokens a second"
    return (
        f"{human_rate(speed.decode_tok_s)} tok/s alone, {human_rate(speed.batch_tok_s)} tok/s over "
        f"{chosen.knobs.max_running} streams, first token of 512 after {human_seconds(speed.first_token_s)}"
    )


def _candidates(candidates: Sequence[Candidate]) -> list[str]:
    rows = []
    for rank, candidate in enumerate(candidates, 1):
        p = candidate.profile
        rows.append(
            (
                "*" if rank == 1 else "",
                p.device,
                p.weight_format,
                p.kv_dtype,
                human_tokens(p.context_tokens),
                f"{p.users}",
                human_tokens(p.kv_tokens),
                human_bytes(p.memory.total_bytes),
                human_rate(p.speed.decode_tok_s),
                human_rate(p.speed.batch_tok_s),
                human_rate(p.speed.prefill_tok_s),
                candidate.note,
            )
        )
    header = (
        "", "device", "weights", "KV", "context", "users", "KV pool", "memory", "tok/s", "all tok/s", "prompt tok/s", ""
    )  # fmt: skip
    return table(rows, header)


def memory_picture(profile: Profile, answer: PlanAnswer) -> list[str]:
    """A bar of the device's memory, and what each mark in it is."""
    budget = next(b for b in answer.budgets if b.device == profile.device)
    whole = max(budget.total_bytes or 0, profile.memory.total_bytes)
    bar = ""
    legend = []
    drawn = 0
    for mark, item in zip(_MARKS, profile.memory.items, strict=False):
        drawn += item.size_bytes
        upto = round(_BAR_WIDTH * drawn / whole)
        width = max(upto - len(bar), 1 if item.size_bytes and len(bar) < _BAR_WIDTH else 0)
        bar += mark * width
        legend.append((mark, item.name, human_bytes(item.size_bytes), item.detail))
    used = f"{human_bytes(profile.memory.total_bytes)} of {human_bytes(whole)}"
    picture = [f"memory of {budget.name} ({budget.device}): {used}", f"[{bar:.<{_BAR_WIDTH}}]"]
    legend.append((".", "the rest", human_bytes(max(0, whole - profile.memory.total_bytes)), _rest(answer, profile)))
    return [*picture, *_indented(table(legend, ("", "", "", "")))[1:]]


def _rest(answer: PlanAnswer, profile: Profile) -> str:
    budget = next(b for b in answer.budgets if b.device == profile.device)
    left = max(0, budget.usable_bytes - profile.memory.total_bytes)
    return f"{human_bytes(left)} of it still usable, limited by {budget.limited_by}"


def _choices(profile: Profile) -> list[str]:
    return table([(c.topic, c.value, c.reason) for c in profile.choices], ("choice", "value", "reason"))


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"  {line}" for line in lines]
