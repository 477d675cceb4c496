"""How a command reaches the daemon: over its admin socket, or, where none runs, the same services in this process."""

from __future__ import annotations

import getpass
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import httpx

from daemon.settings import LogSettings, Settings
from engine.errors import BayardError, ConfigError, InvalidParameter, error_of

if TYPE_CHECKING:
    from daemon.events import EventLog
    from daemon.store.session import Store
    from daemon.strategy.parts import StrategyParts
    from daemon.tenants.principal import Actor

TIMEOUT_S = 30.0
BASE = "/admin/v1"


class AdminClient:
    """Paths are below /admin/v1. An error of the daemon is raised as the same BayardError here."""

    def __init__(self, socket_path: Path, timeout_s: float = TIMEOUT_S) -> None:
        self.socket_path = socket_path
        self._timeout_s = timeout_s
        self._http = httpx.Client(transport=httpx.HTTPTransport(uds=str(socket_path)), base_url="http://bayard")

    def get(self, path: str, **params: Any) -> Any:
        return self._call("GET", path, params=params)

    def all_items(self, path: str, **params: Any) -> list[dict[str, Any]]:
        """Of a list that comes in pages."""
        found: list[dict[str, Any]] = []
        after: str | None = None
        while True:
            answer = self.get(path, after=after, **params)
            found += answer["items"]
            after = answer.get("next")  # a daemon of an earlier version gives the whole list at once
            if after is None:
                return found

    def text(self, path: str, **params: Any) -> str:
        """An answer that is no JSON."""
        return self._answer("GET", path, None, params=params).text

    def lines(self, path: str, **params: Any) -> Iterator[str]:
        """The data of a stream of events, until the daemon ends it. Blocks: between them."""
        with self._http.stream("GET", f"{BASE}/{path}", params=params, timeout=httpx.Timeout(60.0)) as answer:
            if not answer.is_success:
                raise refusal_of(answer.status_code, answer.read())
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    yield line.removeprefix("data: ")

    def post(self, path: str, body: Any = None, **params: Any) -> Any:
        return self._call("POST", path, json=body, params=params)

    def put(self, path: str, body: Any = None, **params: Any) -> Any:
        return self._call("PUT", path, json=body, params=params)

    def patch(self, path: str, body: Any = None, **params: Any) -> Any:
        return self._call("PATCH", path, json=body, params=params)

    def delete(self, path: str, *, within_s: float = TIMEOUT_S, **params: Any) -> Any:
        return self._call("DELETE", path, within_s, params=params)

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, method: str, path: str, within_s: float | None = None, **what: Any) -> Any:
        answer = self._answer(method, path, within_s, **what)
        return answer.json() if answer.content else None

    def _answer(self, method: str, path: str, within_s: float | None, **what: Any) -> httpx.Response:
        if any(not part for part in path.strip("/").split("?")[0].split("/")) or path.endswith("/"):
            raise InvalidParameter("a name is empty.", "Give one.")
        what["params"] = {key: value for key, value in what["params"].items() if value is not None}
        try:
            timeout = self._timeout_s if within_s is None else within_s
            answer = self._http.request(method, f"{BASE}/{path.lstrip('/')}", timeout=timeout, **what)
        except (httpx.ConnectError, FileNotFoundError) as error:
            raise _unreachable(self.socket_path, error) from error
        except httpx.InvalidURL as error:
            raise InvalidParameter(f"the daemon cannot be asked so: {error}.", "Is a name too long?") from error
        except httpx.TimeoutException as error:
            raise BayardError(
                f"the daemon did not answer {method} {path} within {timeout:g} s.", "See its log."
            ) from error
        except httpx.HTTPError as error:
            raise BayardError(
                f"the daemon broke off {method} {path}: {error}.", "See its log, and try again."
            ) from error
        if answer.is_success:
            return answer
        raise refusal_of(answer.status_code, answer.content)


@dataclass(frozen=True, slots=True)
class Offline:
    """This process owns the state folder for the moment."""

    settings: Settings
    store: Store
    events: EventLog

    def parts(self) -> StrategyParts:
        """Models, plans and the schedule, as the daemon has them."""
        from daemon.strategy.parts import build_parts

        return build_parts(self.store, self.settings, self.events)

    def actor(self) -> Actor:
        """The local user, as the audit names who ran a command."""
        from daemon.tenants.principal import Actor

        return Actor(f"{getpass.getuser()}@command", "command")


@dataclass(frozen=True, slots=True)
class Reach:
    """Exactly one of the two is there."""

    admin: AdminClient | None
    offline: Offline | None

    def parts(self) -> StrategyParts:
        """Only where no daemon runs."""
        assert self.offline is not None
        return self.offline.parts()

    def record(self, action: str, subject: str, after: dict[str, Any] | None = None) -> None:
        """Write the audit entry that the daemon writes for the same change. Only where no daemon runs."""
        from daemon.tenants import audit

        assert self.offline is not None
        actor = self.offline.actor()
        self.offline.store.write_sync(lambda session: audit.append(session, actor, action, subject, after=after))


@contextmanager
def offline_or_admin(settings: Settings) -> Iterator[Reach]:
    """The running daemon's admin API if there is one, else its store, under the state lock, in this process.

    Raises: ConfigError if a process holds the state folder and does not answer.
    """
    client = AdminClient(settings.admin_socket)
    with client:
        if answers(client):
            yield Reach(client, None)
            return
    from daemon.events import EventLog
    from daemon.store.lock import StateLock
    from daemon.store.session import Store
    from daemon.telemetry.logs import set_up_logging

    set_up_logging(LogSettings(level="warning"))  # what a command prints is its answer alone
    with StateLock.acquire(settings.state_dir):
        store = Store.open(settings)
        try:
            events = EventLog(store)
            yield Reach(None, Offline(settings, store, events))
        finally:
            store.close()


@contextmanager
def admin(settings: Settings) -> Iterator[AdminClient]:
    """The running daemon. Raises: ConfigError where none answers."""
    with AdminClient(settings.admin_socket) as client:
        if not answers(client):
            raise _unreachable(settings.admin_socket, None)
        yield client


def answers(client: AdminClient) -> bool:
    """Whether a daemon listens on the socket. Raises: PermissionDenied and the like if it refuses us."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:  # httpx leaves a socket open where none listens
        try:
            probe.connect(str(client.socket_path))
        except PermissionError as error:
            raise _unreachable(client.socket_path, error) from error
        except OSError:
            return False
    client.get("whoami")
    return True


def refusal_of(status: int, content: bytes) -> BayardError:
    """The error that the daemon meant, of its own class, so that the exit status is right too."""
    try:
        body = json.loads(content)
        body = body.get("error", body)
        code, message, hint = str(body["code"]), str(body["message"]), str(body.get("hint") or "")
    except (ValueError, KeyError, TypeError, AttributeError):
        return BayardError(f"the daemon answered with status {status} and nothing readable.", "See its log.")
    return error_of(code, message, hint)


def _unreachable(socket_path: Path, error: Exception | None) -> ConfigError:
    why = f": {error}" if error is not None else ""
    return ConfigError(
        f"no daemon answers on {socket_path}{why}.",
        "Start it with `systemctl start bayard` or `bayard serve`, or name its folders with --state-dir and --run-dir.",
    )
