"""The client turns whatever happens on the socket into an answer or one of four errors."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from admin_tui.answers import Status, Workers
from admin_tui.client import AdminClient
from admin_tui.errors import Mismatch, Refused, TimedOut, Unreachable
from tests.fakes.admin_answers import healthy
from tests.fakes.admin_transport import FakeAdmin


def client_of(transport: httpx.AsyncBaseTransport) -> AdminClient:
    return AdminClient(transport, where="here")


async def test_get_when_answered_returns_typed_and_clean_text() -> None:
    daemon = FakeAdmin(healthy())
    daemon.answers["status"]["hostname"] = "box\x1b[31m"
    status = await client_of(daemon).get("status", Status)
    assert status.hostname == "box\N{REPLACEMENT CHARACTER}[31m"
    assert status.as_of.utcoffset() is not None


async def test_get_when_socket_is_missing_is_unreachable_with_a_hint(tmp_path: Path) -> None:
    client = AdminClient.over_socket(tmp_path / "no.sock")
    with pytest.raises(Unreachable) as caught:
        await client.get("status", Status)
    assert str(tmp_path / "no.sock") in caught.value.message
    assert "bayard serve" in caught.value.hint
    await client.close()


async def test_get_when_socket_is_not_ours_to_open_says_who_may() -> None:
    def refuse(_: httpx.Request) -> httpx.Response:
        try:
            raise PermissionError(13, "Permission denied")
        except PermissionError as error:
            raise httpx.ConnectError("[Errno 13] Permission denied") from error

    with pytest.raises(Unreachable, match="may not open here") as caught:
        await client_of(httpx.MockTransport(refuse)).get("status", Status)
    assert "root" in caught.value.hint


async def test_get_when_no_answer_comes_times_out() -> None:
    daemon = FakeAdmin(healthy())
    daemon.silent = True
    with pytest.raises(TimedOut):
        await client_of(daemon).get("status", Status)


@pytest.mark.parametrize("wrapped", [True, False])
async def test_get_when_refused_carries_the_daemons_own_error(wrapped: bool) -> None:
    daemon = FakeAdmin(healthy())
    error = {"code": "permission_denied", "message": "needs operator", "hint": "ask", "request_id": "r-1"}
    daemon.refusals["workers"] = (403, {"error": error} if wrapped else error)
    with pytest.raises(Refused) as caught:
        await client_of(daemon).get("workers", Workers)
    assert caught.value.forbidden
    assert str(caught.value) == "permission_denied: needs operator ask (request r-1)"


@pytest.mark.parametrize("body", [b"not json", b"[]", b'{"as_of": "yesterday"}', b"\xff\xfe"])
async def test_get_when_answer_is_not_understood_is_a_mismatch(body: bytes) -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(200, content=body))
    with pytest.raises(Mismatch):
        await client_of(transport).get("status", Status)


async def test_get_when_error_body_is_not_json_says_the_status_line() -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(502, content=b"<html>"))
    with pytest.raises(Refused, match="http_502"):
        await client_of(transport).get("status", Status)


async def test_get_when_not_modified_returns_what_was_known() -> None:
    seen: list[str | None] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers.get("if-none-match"))
        if seen[-1] == '"1"':
            return httpx.Response(304)
        return httpx.Response(200, json=healthy()["status"], headers={"etag": '"1"'})

    client = client_of(httpx.MockTransport(answer))
    first = await client.get("status", Status)
    assert await client.get("status", Status) is first
    assert seen == [None, '"1"']
