"""docs/models.md says what the code accepts."""

from __future__ import annotations

from pathlib import Path

from engine.ggml_types import COMPUTABLE_TYPES
from engine.spec.adapter_targets import PROJECTIONS
from engine.spec.encoder_families import ENCODERS
from engine.spec.families import FAMILIES
from engine.spec.model_spec import CheckpointFormat
from engine.spec.quantisation_config import CT_FORMATS, METHODS
from engine.spec.tensor_names import stored_name

PAGE = Path(__file__).parents[4] / "docs" / "models.md"


def test_every_family_has_its_row() -> None:
    rows = {cells[1].strip(): cells for line in PAGE.read_text().splitlines() if len(cells := line.split("|")) == 6}
    for family in FAMILIES:
        cells = rows[family.title]
        assert cells[2].strip() == ", ".join(f"`{name}`" for name in family.hf_architectures)
        assert all(f"`{name}`" in cells[3] for name in family.gguf_architectures)
    assert set(rows) - {"Family", "---"} == {family.title for family in FAMILIES}


def test_every_encoder_has_its_row() -> None:
    lines = PAGE.read_text().splitlines()
    first = next(at for at, line in enumerate(lines) if line.startswith("| Encoder |")) + 2
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[first : first + len(ENCODERS)]]
    assert rows == [
        [
            family.title,
            ", ".join(f"`{name}`" for name in family.hf_architectures),
            ", ".join(f"`{name}`" for name in family.gguf_architectures),
            family.differs,
            "as stated",
        ]
        for family in ENCODERS
    ]
    assert not lines[first + len(ENCODERS)]


def test_every_projection_that_adapters_may_change_is_named() -> None:
    (line,) = (line for line in PAGE.read_text().splitlines() if line.startswith("| Projections |"))
    accepted = line.split("|")[2]
    ends = {stored_name(CheckpointFormat.HF, role, 0).split(".")[-2] for role in PROJECTIONS}
    assert all(end in accepted for end in ends)
    assert "shared experts" in accepted


def test_every_stored_type_is_named() -> None:
    line = next(line for line in PAGE.read_text().splitlines() if line.startswith("| GGUF"))
    assert line.split("|")[2].split(";")[0].split() == list(COMPUTABLE_TYPES)


def test_every_method_of_quantised_folders_has_its_row() -> None:
    lines = PAGE.read_text().splitlines()
    first = next(at for at, line in enumerate(lines) if line.startswith("| `quant_method` |")) + 2
    assert [line.split("|")[1].strip(" `") for line in lines[first : first + len(METHODS)]] == list(METHODS)
    assert not lines[first + len(METHODS)]
    assert all(f"`{name}`" in lines[first] for name in CT_FORMATS if name != "mixed-precision")
