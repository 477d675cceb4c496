"""What the documents tell people to type exists, and what they link to is there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from daemon.cli import COMMANDS, run

ROOT = Path(__file__).resolve().parents[3]
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
TARGETS = set(re.findall(r"^([a-z]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_readme_gives_a_first_request_in_five_commands() -> None:
    text = (ROOT / "README.md").read_text()
    first = re.search(r"## First request.*?```sh\n(.*?)```", text, re.DOTALL)
    assert first is not None
    commands = re.sub(r"\\\n", " ", first[1]).strip().splitlines()
    assert 1 <= len([line for line in commands if line and not line.startswith("#")]) <= 5


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_document_names_only_make_targets_that_exist(document: Path) -> None:
    named = set(re.findall(r"(?:^|`)\s*make ([a-z]+)", document.read_text(), re.MULTILINE))
    assert named <= TARGETS


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_document_names_only_bayard_commands_that_exist(document: Path) -> None:
    named = set(re.findall(r"(?:^|`|\$ |bin/)bayard ([a-z]+(?:-[a-z]+)*)", document.read_text(), re.MULTILINE))
    assert named <= set(COMMANDS)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_document_links_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text())
    assert [target for target in targets if not (document.parent / target).exists()] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "--help"]) == 0
    assert f"Usage: bayard {command}" in capsys.readouterr().out


def test_changelog_has_the_version_that_is_built() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "Unreleased" or headings[0].startswith(version)
    assert any(heading.startswith(version) for heading in headings)
