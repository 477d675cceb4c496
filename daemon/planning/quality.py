"""The price of a precision in words, from what `bayard quality` measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def quality_line(found: Mapping[str, object]) -> str:
    """One comparison. found: as engine.quantize.quality prints it"""
    told = found.get("notes", [])  # those kept by earlier versions have none
    assert isinstance(told, list), told
    change, agreement, kl = (_number(found, name) for name in ("perplexity_change", "agreement", "mean_kl"))
    return (
        f"{found['second']} beside {found['first']}: perplexity {change:+.2%}, the same likeliest token in "
        f"{agreement:.1%} of {found['tokens']:,} places, divergence {kl:.4f} nats a token ({found['text']} text)"
        + "".join(f". {note}" for note in told)
    )


def quality_notes(measured: Iterable[Mapping[str, object]]) -> tuple[str, ...]:
    return tuple(f"measured: {quality_line(found)}" for found in measured)


def _number(found: Mapping[str, object], name: str) -> float:
    value = found[name]
    assert isinstance(value, float | int), (name, value)
    return float(value)
