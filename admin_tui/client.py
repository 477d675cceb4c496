"""The console's only way to the daemon: the admin API over its unix socket."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeVar

import httpx
import msgspec

from admin_tui.clean import clean, clean_json
from admin_tui.errors import ConsoleError, Mismatch, Refused, TimedOut, Unreachable

T = TypeVar("T", bound=msgspec.Struct)

DEADLINE_S = 2.0
ACCESS_HINT = "Run the console as root or as the daemon's own user."
START_HINT = "Is it running? Try: systemctl status bayard, or start it with: bayard serve"


class AdminClient:
    """Owner: the app. Every answer is cleaned of control characters before anything else sees it."""

    def __init__(self, transport: httpx.AsyncBaseTransport, *, where: str, deadline_s: float = DEADLINE_S) -> None:
        self.where = where
        self._http = httpx.AsyncClient(transport=transport, base_url="http://bayard/admin/v1/", timeout=deadline_s)
        self._seen: dict[str, tuple[str, msgspec.Struct]] = {}  # path -> (ETag, the answer it stands for)

    @classmethod
    def over_socket(cls, socket: Path) -> AdminClient:
        return cls(httpx.AsyncHTTPTransport(uds=str(socket)), where=str(socket))

    async def get(self, path: str, kind: type[T]) -> T:
        """Raises: ConsoleError and its kinds, nothing else."""
        etag, known = self._seen.get(path, ("", None))
        response = await self._send("GET", path, headers={"If-None-Match": etag} if etag else {})
        if response.status_code == httpx.codes.NOT_MODIFIED and isinstance(known, kind):
            return known
        answer = self._decode(path, response, kind)
        if "etag" in response.headers:
            self._seen[path] = (response.headers["etag"], answer)
        return answer

    async def post(self, path: str, body: dict[str, object]) -> None:
        """Mutates the daemon. Raises: ConsoleError and its kinds, nothing else."""
        await self._send("POST", path, body=body)

    async def close(self) -> None:
        await self._http.aclose()

    async def _send(
        self, method: str, path: str, *, headers: dict[str, str] | None = None, body: dict[str, object] | None = None
    ) -> httpx.Response:
        try:
            response = await self._http.request(method, path, headers=headers, json=body)
        except httpx.TimeoutException as error:
            raise TimedOut(f"The daemon did not answer /{path} in time.", START_HINT) from error
        except httpx.TransportError as error:
            why = clean(str(error)) or type(error).__name__
            if has_cause(error, PermissionError):
                raise Unreachable(f"This user may not open {self.where}.", ACCESS_HINT) from error
            raise Unreachable(f"Nobody answers at {self.where}: {why}.", START_HINT) from error
        if response.status_code >= 400:
            raise refusal_of(response)
        return response

    def _decode(self, path: str, response: httpx.Response, kind: type[T]) -> T:
        try:
            return msgspec.convert(clean_json(response.json()), kind)
        except (json.JSONDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
            raise Mismatch(
                f"The daemon's answer to /{path} is not what this console understands: {clean(str(error))}.",
                "Use the console of the daemon's own version.",
            ) from error


def has_cause(error: BaseException | None, kind: type[BaseException]) -> bool:
    """Whether this kind is anywhere in the chain of what led to the error."""
    while error is not None:
        if isinstance(error, kind):
            return True
        error = error.__cause__ or error.__context__
    return False


def refusal_of(response: httpx.Response) -> ConsoleError:
    """The daemon's error object as an exception; without one, what the status line says."""
    try:
        body = clean_json(response.json())
    except (json.JSONDecodeError, UnicodeDecodeError):
        body = None
    found = body.get("error", body) if isinstance(body, dict) else None
    if not isinstance(found, dict) or "message" not in found:
        return Refused(
            response.status_code, f"http_{response.status_code}", f"The daemon said {response.reason_phrase}."
        )
    fields = {name: str(found.get(name) or "") for name in ("code", "message", "hint", "request_id")}
    return Refused(response.status_code, **fields)
