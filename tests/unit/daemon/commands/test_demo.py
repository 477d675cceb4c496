"""The demo's refusals: what it says and how it ends when something is not as it should be."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from daemon.cli import run
from daemon.commands import demo
from daemon.settings_load import load_settings
from daemon.store.lock import StateLock
from engine.errors import ConfigError, WorkerError


def test_demo_when_model_is_missing_says_how_to_get_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = run(["demo", "--model", str(tmp_path / "none.gguf"), "--folder", str(tmp_path / "demo"), "--once"])
    assert status == 78
    assert "make model" in capsys.readouterr().err
    assert not (tmp_path / "demo").exists()


def test_demo_when_daemon_cannot_start_shows_its_last_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = demo.Demo(tmp_path / "m.gguf", tmp_path)
    monkeypatch.setattr(made, "where", ["--config", str(tmp_path / "absent.toml")])
    with pytest.raises(ConfigError, match=r"ended with status 78(.|\n)*absent\.toml"), made.daemon():
        pytest.fail("the daemon cannot run without its settings")


class Answering:
    """The official client's shape, with an answer of our choice."""

    def __init__(self, pieces: list[str]) -> None:
        chunks = [SimpleNamespace(choices=[SimpleNamespace(delta=SimpleNamespace(content=piece))]) for piece in pieces]
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=lambda **_: Stream(chunks)))


class Stream(list[Any]):
    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()


@pytest.mark.parametrize(("pieces", "good"), [(["It is ", "Paris", "."], True), (["It is Lyon."], False), ([], False)])
def test_ask_when_answer_does_not_name_paris_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pieces: list[str], good: bool
) -> None:
    monkeypatch.setattr("openai.OpenAI", lambda **_: Answering(pieces))
    made = demo.Demo(tmp_path / "m.gguf", tmp_path)
    if good:
        made.ask("key")
    else:
        with pytest.raises(WorkerError, match="does not name Paris"):
            made.ask("key")


def test_free_port_when_the_usual_one_is_taken_gives_another() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        taken = holder.getsockname()[1]
        assert demo.free_port(taken) != taken


def test_ports_that_the_environment_names_are_the_demos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon hears of them from the demo alone, and whatever else could move it is kept from it."""
    http, grpc = demo.free_port(0), demo.free_port(0)
    monkeypatch.setenv("BAYARD_HTTP_PORT", str(http))
    monkeypatch.setenv("BAYARD_GRPC_PORT", str(grpc))
    monkeypatch.setenv("BAYARD_STATE_DIR", "/elsewhere")
    monkeypatch.setenv("BAYARD_HTTP_HOST", "192.0.2.1")
    monkeypatch.setenv("BAYARD_LOG_LEVEL", "debug")
    made = demo.Demo(tmp_path / "m.gguf", tmp_path)
    assert (made.port, made.grpc_port) == (http, grpc)
    (tmp_path / "settings.json").write_text('{"http.port": 1}')
    made.settings.write_text(made.settings_text())
    started: list[tuple[list[str], dict[str, str]]] = []

    def popen(command: list[str], *, env: dict[str, str], **_: Any) -> Any:
        started.append((command, env))
        return SimpleNamespace(poll=lambda: 0)

    monkeypatch.setattr(subprocess, "Popen", popen)
    monkeypatch.setattr(made, "until", lambda *_: None)
    with made.daemon():
        pass
    ((command, env),) = started
    given = dict(pairwise(command))
    flags = {"http.port": given["--port"], "grpc.port": given["--grpc-port"], "http.host": given["--host"]}
    settings = load_settings(made.settings, env, flags)
    assert (settings.http.port, settings.grpc.port, settings.http.host) == (http, grpc, "127.0.0.1")
    assert settings.state_dir == tmp_path
    assert settings.log.level == "debug"


@pytest.mark.parametrize("named", ["http", "no", "70000", "-1", "taken", "both"])
def test_port_that_the_demo_cannot_have_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], named: str
) -> None:
    model = tmp_path / "m.gguf"
    model.touch()
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        value = str(holder.getsockname()[1]) if named == "taken" else named
        if named == "both":
            value = str(demo.free_port(0))
            monkeypatch.setenv("BAYARD_GRPC_PORT", value)
        monkeypatch.setenv("BAYARD_HTTP_PORT", value)
        assert run(["demo", "--model", str(model), "--folder", str(tmp_path / "demo"), "--once"]) == 78
    told = capsys.readouterr().err
    assert value in told
    assert ("HTTP and gRPC" if named == "both" else "BAYARD_HTTP_PORT") in told


def test_usual_port_that_the_other_has_is_not_taken_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = demo.free_port(0)
    monkeypatch.setattr(demo, "HTTP_PORT", wanted)
    monkeypatch.setenv("BAYARD_GRPC_PORT", str(wanted))
    http, grpc = demo.ports()
    assert grpc == wanted
    assert http != wanted


def test_settings_when_folder_is_deep_keep_sockets_within_a_unix_path(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 80)
    made = demo.Demo(tmp_path / "m.gguf", deep)
    run_dir = next(line for line in made.settings_text().splitlines() if line.startswith("run_dir"))
    assert len(run_dir.split('"')[1]) < demo.SOCKET_PATH_BYTES


def test_stop_when_daemon_ignores_the_request_insists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "STOP_LIMIT_S", 0.3)
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    began = time.monotonic()
    demo.stop(process)
    process.stdout.close()
    assert process.returncode == -9
    assert time.monotonic() - began < 5


def test_demo_stopped_by_the_operator_says_what_it_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = demo.Demo(tmp_path / "m.gguf", tmp_path)
    sleeper = [sys.executable, "-c", "import time; time.sleep(60)"]
    monkeypatch.setattr(made, "until", lambda *_: None)
    real = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda _command, **how: real(sleeper, **how))
    with pytest.raises(KeyboardInterrupt), made.daemon() as daemon:
        raise KeyboardInterrupt
    assert daemon.poll() is not None
    assert "stopping: running answers may finish" in capsys.readouterr().out


def test_demo_beside_a_running_one_leaves_its_settings_and_log_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "m.gguf"
    model.touch()
    (tmp_path / "bayard.toml").write_text("theirs")
    with StateLock.acquire(tmp_path):
        status = run(["demo", "--model", str(model), "--folder", str(tmp_path), "--once"])
    assert status == 78
    assert "runs in" in capsys.readouterr().err
    assert (tmp_path / "bayard.toml").read_text() == "theirs"
    assert not (tmp_path / "daemon.log").exists()


def test_demo_when_the_worker_was_given_up_ends_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = demo.Demo(tmp_path / "m.gguf", tmp_path)
    told = {"reasons": ["worker m is given up: it cannot load"], "workers": {"m": "latched"}}
    monkeypatch.setattr(made, "get", lambda _path: httpx.Response(503, json=told))
    running: Any = SimpleNamespace(poll=lambda: None)
    with pytest.raises(WorkerError, match="it cannot load") as caught:
        made.wait_ready(running)
    assert str(tmp_path / "logs") in caught.value.hint
