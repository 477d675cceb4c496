"""`bayard tenants|keys` without a daemon and through one: the same words, the same JSON."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from daemon.api.admin.keys import KeyItem
from daemon.api.admin.tenants import TenantItem
from daemon.cli import run
from tests.fakes.fake_admin import admin_socket
from tests.fakes.fake_services import fake_services

Bayard = Callable[..., tuple[int, str, str]]


@pytest.fixture(params=["offline", "daemon"])
def state_dir(request: pytest.FixtureRequest, short_dir: Path) -> Iterator[Path]:
    """A state folder; in one of the cases a daemon's admin API answers for it."""
    folder = short_dir / "state"
    folder.mkdir()
    if request.param == "offline":
        yield folder
        return
    ready, done = threading.Event(), threading.Event()

    async def serve() -> None:
        async with fake_services(folder) as services, admin_socket(services, folder / "run" / "admin.sock"):
            ready.set()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(20)
    yield folder
    done.set()
    thread.join(20)


@pytest.fixture
def bayard(state_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Bayard:
    """Run a command; (exit status, stdout, stderr)."""
    for name in ("BAYARD_STATE_DIR", "BAYARD_CONFIG", "BAYARD_RUN_DIR"):
        monkeypatch.delenv(name, raising=False)

    def call(*argv: str) -> tuple[int, str, str]:
        status = run([*argv, "--state-dir", str(state_dir)])
        told = capsys.readouterr()
        return status, told.out, told.err

    return call


def answer(bayard: Bayard, *argv: str) -> Any:
    status, out, err = bayard(*argv, "--json")
    assert status == 0, err
    return json.loads(out)


def test_tenant_and_key_from_creation_to_revocation(bayard: Bayard) -> None:
    made = answer(bayard, "tenants", "create", "acme", "--max-concurrency", "3", "--model", "b", "--model", "a")
    limits = TenantItem.model_validate(made).limits
    assert (limits.max_concurrency, limits.models, limits.max_queue) == (3, ["a", "b"], None)
    status, secret, told = bayard("keys", "create", "--tenant", "acme", "--name", "ci", "--expires-days", "1")
    assert status == 0
    assert secret.startswith("bk_live_")
    assert secret.count("\n") == 1  # alone on stdout, for KEY=$(bayard keys create ...)
    assert secret.strip() not in told
    (item,) = answer(bayard, "keys", "list", "--tenant", "acme")
    assert KeyItem.model_validate(item).state == "active"
    assert secret.strip() not in json.dumps(item)
    assert "ci" in bayard("keys", "list")[1]
    assert answer(bayard, "keys", "revoke", f"{item['prefix']}..")["state"] == "revoked"
    changed = answer(bayard, "tenants", "limits", "acme", "--max-output-tokens", "9")
    assert changed["limits"] == {**changed["limits"], "max_output_tokens": 9, "max_concurrency": None, "models": None}
    assert "is suspended" in bayard("tenants", "suspend", "acme")[1]
    assert "max_output_tokens 9" in bayard("tenants", "list")[1]
    assert answer(bayard, "tenants", "resume", "acme")["state"] == "active"


def test_rotated_key_names_its_successor_and_quotas_are_kept(bayard: Bayard) -> None:
    answer(bayard, "tenants", "create", "acme", "--tokens-per-day", "1000", "--request-burst", "3")
    first = answer(bayard, "keys", "create", "--tenant", "acme", "--name", "ci", "--role", "operator")
    second = answer(bayard, "keys", "rotate", first["id"], "--overlap-hours", "1")
    old, new = answer(bayard, "keys", "list", "--tenant", "acme")
    assert (old["replaced_by"], old["state"], new["id"]) == (second["id"], "active", second["id"])
    assert (new["name"], new["role"], new["expires_at"]) == ("ci", "operator", None)
    assert old["expires_at"] is not None
    assert "Rotate that one" in bayard("keys", "rotate", first["id"])[2]
    limits = {item["name"]: item["limits"] for item in answer(bayard, "tenants", "list")}["acme"]
    assert (limits["tokens_per_day"], limits["request_burst"], limits["tokens_per_month"]) == (1000, 3, None)


@pytest.mark.parametrize(
    ("argv", "status", "says"),
    [
        (["keys", "create", "--tenant", "nobody"], 1, "bayard tenants create nobody"),
        (["keys", "revoke", "k_none"], 1, "bayard keys list"),
        (["tenants", "create", "a/b"], 1, "without a slash"),
        (["keys", "create", "--tenant", "x", "--role", "root"], 2, "none of inference, metrics, operator, admin"),
        (["tenants", "create", "x", "--max-concurrency", "0"], 2, "max-concurrency"),
        (["tenants", "create", "x", "--tokens-per-day", str(10**23)], 2, "tokens-per-day"),
        (["tenants", "create", "x", "--requests-per-minute", str(2**31)], 2, "requests-per-minute"),
        (["keys", "create", "--tenant", "x", "--expires-days", "inf"], 2, "expires-days"),
        (["keys", "rotate", "x", "--overlap-hours", "1e300"], 2, "overlap-hours"),
        (["tenants", "suspend", "a/../b"], 1, "not_found"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_a_status(bayard: Bayard, argv: list[str], status: int, says: str) -> None:
    ended, out, err = bayard(*argv)
    assert ended == status
    assert says in err
    assert out == ""


def test_empty_lists_say_what_to_do_next(short_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("tenants", "keys"):
        assert run([command, "list", "--state-dir", str(short_dir / "s")]) == 0
        assert f"bayard {command} create" in capsys.readouterr().out
