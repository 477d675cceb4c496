"""Names from outside never steer the terminal that shows them."""

from __future__ import annotations

import pytest

from daemon.commands.printable import printable
from daemon.commands.progress import ProgressLine


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Grüße, 世界 [red]", "Grüße, 世界 [red]"),
        ("a\x1b[2Jb\r\x07", "a\\x1b[2Jb\\r\\x07"),
        ("\u202edcba \udcff", "\\u202edcba \\udcff"),
    ],
)
def test_printable_spells_out_what_cannot_be_seen(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_printable_keeps_what_it_is_told_to() -> None:
    assert printable("a\n\tb", keep="\n") == "a\n\\tb"


def test_progress_of_a_file_with_escapes_is_one_plain_line(capsys: pytest.CaptureFixture[str]) -> None:
    ProgressLine().show("hashing", "a\x1b[31m\nb", 1, 2)
    assert capsys.readouterr().err == "hashing a\\x1b[31m\\nb 0 of 0 MiB (50 %)\n"
