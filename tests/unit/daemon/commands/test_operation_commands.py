"""Commands that run the box, against a served admin API; and that every write of it has its twin here."""

from __future__ import annotations

import asyncio
import json
import re
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import APIRoute

from daemon.api.admin.app import ROUTERS
from daemon.cli import COMMANDS, run
from daemon.commands.backup import passphrase_of
from daemon.tenants.usage import UsageSum
from daemon.workers.states import WorkerState
from engine.errors import ConfigError
from tests.fakes.fake_admin import AdminParts, admin_socket, worker_view
from tests.fakes.fake_services import FakeServices, fake_services

Bayard = Callable[..., tuple[int, str, str]]
SOURCES = Path(__file__).resolve().parents[4] / "daemon" / "commands"


@pytest.fixture
def box(short_dir: Path) -> Iterator[tuple[AdminParts, FakeServices]]:
    """A daemon's admin API in a thread of its own, with one worker that wrote a log."""
    ready, done = threading.Event(), threading.Event()
    made: list[tuple[AdminParts, FakeServices]] = []
    log = short_dir / "w.log"
    log.write_text("one\ntwo\n")

    async def serve() -> None:
        async with fake_services(short_dir) as services, admin_socket(services, short_dir / "run/admin.sock") as served:
            served[0].supervisor.shown = [worker_view(WorkerState.READY, log_path=log)]
            used = UsageSum(requests=2, prompt_tokens=30, output_tokens=4)
            services.tenants.usage.add(services.tenants.identify(services.key), "m", used)
            await services.tenants.usage.settle()
            made.append((served[0], services))
            ready.set()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(20)
    yield made[0]
    done.set()
    thread.join(20)


@pytest.fixture
def bayard(box: object, short_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Bayard:
    for name in ("BAYARD_STATE_DIR", "BAYARD_CONFIG", "BAYARD_RUN_DIR"):
        monkeypatch.delenv(name, raising=False)

    def call(*argv: str) -> tuple[int, str, str]:
        status = run([*argv, "--state-dir", str(short_dir)])
        told = capsys.readouterr()
        return status, told.out, told.err

    return call


def answer(bayard: Bayard, *argv: str) -> Any:
    status, out, err = bayard(*argv, "--json")
    assert status == 0, err
    return json.loads(out)


def test_worker_is_asked_and_dry_runs_tell(bayard: Bayard, box: tuple[AdminParts, FakeServices]) -> None:
    assert "3 requests in flight" in bayard("workers", "stop", "w", "--dry-run")[1]
    assert box[0].supervisor.calls == []
    for action in ("drain", "stop", "kill", "wake", "restart"):
        assert answer(bayard, "workers", action, "w")["id"] == "w"
    assert [call[0] for call in box[0].supervisor.calls] == ["sleep", "sleep", "kill", "wake"]
    assert "not latched" in bayard("workers", "clear-latch", "w")[2]


def test_admission_is_paused_and_resumed(bayard: Bayard) -> None:
    assert "paused: moving; 0 running" in bayard("admission", "pause", "--reason", "moving")[1]
    assert answer(bayard, "admission", "show")["paused"] == "moving"
    assert "open; 0 running" in bayard("admission", "resume")[1]


def test_logs_usage_and_requests_are_shown(bayard: Bayard, short_dir: Path) -> None:
    assert bayard("logs", "w", "-n", "1")[1] == "two\n"
    assert answer(bayard, "logs")[0]["worker"] == "w"
    assert "demo" in bayard("usage")[1]
    assert answer(bayard, "usage", "--by", "none")["items"][0]["requests"] == 2
    export = short_dir / "usage.csv"
    assert bayard("usage", "--export", str(export))[1].startswith("1 lines are in")
    assert ",30," in export.read_text()
    assert bayard("usage", "--since", "yesterday")[0] == 2
    assert "no request is here" in bayard("requests", "list")[1]
    assert bayard("requests", "cancel", "none")[0] == 1


def test_support_bundle_tells_the_state_and_no_secret(
    bayard: Bayard, box: tuple[AdminParts, FakeServices], short_dir: Path
) -> None:
    secret = box[1].key
    (short_dir / "w.log").write_text(f"authorization: Bearer {secret} from 10.1.2.3\n")
    out = short_dir / "support.tar.gz"
    assert answer(bayard, "support-bundle", str(out))["bundle"] == str(out)
    with tarfile.open(out) as archive:
        texts = {}
        for member in archive:
            file = archive.extractfile(member)
            assert file is not None
            texts[member.name.rpartition("/")[2]] = file.read().decode()
    assert {"machine.json", "doctor.json", "settings.json", "status.json", "workers.json", "log-w.txt"} <= set(texts)
    assert json.loads(texts["workers.json"])["items"][0]["id"] == "w"
    for text in texts.values():
        assert secret not in text
        assert "10.1.2.3" not in text
        assert "demo" not in text  # a tenant's name
    assert "there is such a file" in bayard("support-bundle", str(out))[2]


def test_audit_is_listed_and_verified(bayard: Bayard) -> None:
    bayard("admission", "pause")
    assert answer(bayard, "audit", "list", "-n", "1")[0]["action"] == "admission.pause"
    assert "admission.pause" in bayard("audit", "list")[1]
    whole = answer(bayard, "audit", "verify")
    assert whole["whole"] is True
    assert len(whole["head"]) == 64


def test_every_write_of_the_admin_api_has_a_command_with_json() -> None:
    text = "".join(path.read_text() for path in SOURCES.glob("*.py"))
    called = {
        re.sub(r"\{[^}]*\}", "*", path)
        for path in re.findall(
            r'\.(?:post|put|patch|delete)\(\s*f?"([^"?]+)"',
            text.replace("f\"workers/{quote(name, safe='')}/{action}\"", '"workers/*/*"'),
        )
    }
    missing = []
    for router in ROUTERS:
        for route in router.routes:
            if isinstance(route, APIRoute) and route.methods != {"GET"}:
                path = re.sub(r"\{[^}]*\}", "*", route.path.removeprefix("/"))
                shapes = {path, "workers/*/*" if path.startswith("workers/") else path}
                if not any(_same(shape, one) for shape in shapes for one in called):
                    missing.append(f"{route.methods} {path}")
    assert missing == []
    for name in COMMANDS:
        source = (SOURCES / f"{name.replace('-', '_')}.py").read_text()
        if ".post(" in source or ".put(" in source or ".delete(" in source:
            assert "JsonOption" in source, name


def _same(left: str, right: str) -> bool:
    one, two = left.split("/"), right.split("/")
    return len(one) == len(two) and all(a == b or "*" in (a, b) for a, b in zip(one, two, strict=True))


def test_passphrase_that_is_no_text_says_so(tmp_path: Path) -> None:
    (tmp_path / "raw").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not text"):
        passphrase_of(tmp_path / "raw")
