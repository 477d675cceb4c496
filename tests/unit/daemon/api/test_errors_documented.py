"""docs/errors.md names every code with the status it really has."""

from __future__ import annotations

import re
from pathlib import Path

import grpc

from daemon.api.errors import wire_error
from daemon.api.grpc.statuses import details_of, status_of
from engine.errors import InvalidParameter, all_error_types

ROOT = Path(__file__).resolve().parents[4]
ROW = re.compile(r"^\| `(\w+)` \| (\d{3}) \| (.*?) \|", re.MULTILINE)


def rows() -> dict[str, tuple[int, str]]:
    text = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    return {code: (int(status), rest) for code, status, rest in ROW.findall(text)}


def test_every_error_type_is_documented_as_it_maps() -> None:
    documented = rows()
    for kind in all_error_types():
        error = kind("It happened.", "Do this.", retry_after_s=2.0)
        assert documented[kind.code] == (wire_error(error).status, status_of(error).name), kind
        assert status_of(error) is not grpc.StatusCode.OK
    codes = [kind.code for kind in all_error_types()]
    assert len(codes) == len(set(codes))


def test_every_code_of_the_transport_is_documented() -> None:
    source = "".join(path.read_text() for path in (ROOT / "daemon" / "api").glob("*.py"))
    used = set(re.findall(r'(?:route_error|_closing)\(\s*\d{3}, "(\w+)"', source))
    assert used
    assert used <= rows().keys()


def test_nothing_else_is_documented() -> None:
    source = "".join(path.read_text() for path in (ROOT / "daemon" / "api").glob("*.py"))
    known = {kind.code for kind in all_error_types()}
    assert all(code in known or f'"{code}"' in source for code in rows())


def test_grpc_details_are_ascii_on_one_line() -> None:
    error = InvalidParameter("Nö\n.", "Tü\r\ndas", param="π", retry_after_s=0.5)
    details = dict(details_of(error))
    assert all(key.endswith("-bin") or (value.isascii() and value.isprintable()) for key, value in details.items())
    assert details["retry-after-ms"] == "500"
