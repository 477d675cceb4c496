"""docs/models.md says what the code accepts."""

from __future__ import annotations

from pathlib import Path

from engine.ggml_types import COMPUTABLE_TYPES
from engine.spec.families import FAMILIES

PAGE = Path(__file__).parents[4] / "docs" / "models.md"


def test_every_family_has_its_row() -> None:
    rows = {cells[1].strip(): cells for line in PAGE.read_text().splitlines() if len(cells := line.split("|")) == 6}
    for family in FAMILIES:
        cells = rows[family.title]
        assert cells[2].strip() == ", ".join(f"`{name}`" for name in family.hf_architectures)
        assert all(f"`{name}`" in cells[3] for name in family.gguf_architectures)
    assert set(rows) - {"Family", "---"} == {family.title for family in FAMILIES}


def test_every_stored_type_is_named() -> None:
    line = next(line for line in PAGE.read_text().splitlines() if line.startswith("| GGUF"))
    assert line.split("|")[2].split(";")[0].split() == list(COMPUTABLE_TYPES)
