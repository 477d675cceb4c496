"""Two texts that every machine has: one to learn from, another to measure with. Both are in the public domain."""

from __future__ import annotations

from importlib.resources import files


def calibration_text() -> str:
    """Passages of eighteen works, from Shakespeare to Baum (1900), most of them English novels: see sources.txt."""
    return _read("calibration.txt")


def evaluation_text() -> str:
    """Passages of Jane Austen (1813), Charles Dickens (1859), Abraham Lincoln (1863) and Henry David Thoreau (1854)."""
    return _read("evaluation.txt")


def _read(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
