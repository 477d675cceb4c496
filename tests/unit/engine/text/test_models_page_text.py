"""docs/models.md says what is parsed, constrained and guessed."""

from __future__ import annotations

from pathlib import Path

from engine.grammar.compiler import COMPILE_LIMIT_S
from engine.messages import GrammarKind
from engine.speculative import LookupDrafter
from engine.speculative.draft_model import DraftModel
from engine.speculative.forced import ForcedDrafter
from engine.speculative.next_token import NextTokenDrafter
from engine.text import schema_limits as limits
from engine.text.tools import WRITTEN_BY, ToolFormat, tool_format_of
from tests.fakes.templates import WITH_TOOLS

PAGE = (Path(__file__).parents[4] / "docs" / "models.md").read_text()


def table(heading: str) -> list[list[str]]:
    lines = PAGE.splitlines()
    first = next(at for at, line in enumerate(lines) if line.startswith(f"| {heading} |")) + 2
    rows = []
    for line in lines[first:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.removeprefix("| ").removesuffix(" |").split(" | ")])
    return rows


def test_every_tool_format_has_its_row_and_a_template() -> None:
    assert table("Calls") == [[f"`{form}`", *WRITTEN_BY[form]] for form in ToolFormat]
    assert set(WITH_TOOLS) == set(ToolFormat)


def test_what_a_template_is_known_by_is_enough() -> None:
    for form, (_, marks) in WRITTEN_BY.items():
        text = marks.replace("`", "").replace("a code fence", "```json")
        assert tool_format_of(text) is form


def test_every_kind_of_grammar_and_its_limits_are_named() -> None:
    assert [row[0] for row in table("Kind")] == [f"`{kind}`" for kind in GrammarKind]
    for figure in (
        f"{limits.LONGEST_TEXT_BYTES // 1024} KiB",
        f"{limits.DEEPEST} levels",
        f"{limits.MOST_REPEATS:,} repeats",
        f"{limits.MOST_ITEMS:,} items",
        f"{COMPILE_LIMIT_S:g} s to compile",
    ):
        assert figure in PAGE


def test_every_drafter_has_its_row() -> None:
    names = [cls.name for cls in (ForcedDrafter, LookupDrafter, DraftModel, NextTokenDrafter)]
    assert [row[0] for row in table("Guesses come from")] == [f"`{name}`" for name in names]
