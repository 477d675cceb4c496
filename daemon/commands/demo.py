"""bayard demo: the way of a first user, by the ordinary commands, in a folder of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NoReturn

import httpx
import typer

from daemon.settings_load import variable_of
from daemon.store.lock import lock_holder
from daemon.workers.states import WorkerState
from engine.errors import BayardError, ConfigError, WorkerError

app = typer.Typer(rich_markup_mode=None)

MODEL_NAME = "smollm2-135m"
QUESTION = "What is the capital of France?"
ANSWER = "Paris"
ANSWER_TOKENS = 48
READY_LIMIT_S = 120.0
STOP_LIMIT_S = 45.0
HTTP_PORT, GRPC_PORT = 8080, 8081
# What the demo itself decides; of the environment it heeds the ports alone.
OWN_PORTS = ("http.port", "grpc.port")
OWN_SETTINGS = (*OWN_PORTS, "state_dir", "run_dir", "admin_socket", "http.host", "grpc.host", "tls.enabled")
SOCKET_PATH_BYTES = 60  # of a unix socket's 107: the rest is for the names that the daemon adds


@app.command()
def demo(
    model: Annotated[Path, typer.Option(help="A small chat model as GGUF file.", metavar="FILE")],
    folder: Annotated[Path, typer.Option(help="State folder of the demo.", metavar="DIR")] = Path(".demo"),
    once: Annotated[bool, typer.Option("--once", help="End after the answer instead of serving on.")] = False,
) -> None:
    """Import a small model, serve it, ask it one question through the official OpenAI client, and serve on."""
    if not model.is_file():
        raise ConfigError(f"there is no model at {model}.", "Fetch it with: make model")
    if (pid := lock_holder(folder)) is not None:  # its settings and its log are left alone
        raise ConfigError(
            f"a demo runs in {folder} already, as process {pid}.",
            f"Use that one, or stop it with `kill {pid}`, or name another folder with --folder.",
        )
    folder.mkdir(parents=True, exist_ok=True)
    Demo(model.absolute(), folder.absolute()).run(once)


class Demo:
    """Owner of the daemon that it starts: it is stopped however the demo ends."""

    def __init__(self, model: Path, folder: Path) -> None:
        self.model, self.folder = model, folder
        self.port, self.grpc_port = ports()
        self.url = f"http://127.0.0.1:{self.port}"
        self.settings = folder / "bayard.toml"
        self.where = ["--config", str(self.settings)]
        own = {variable_of(key) for key in OWN_SETTINGS}
        self.environment = {name: value for name, value in os.environ.items() if name not in own}
        self.began_mono = time.monotonic()

    def run(self, once: bool) -> None:
        # a shell's background jobs begin with SIGINT ignored; SIGHUP comes when the terminal is closed
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, _as_interrupt)
        for name in map(variable_of, OWN_SETTINGS[len(OWN_PORTS) :]):
            if name in os.environ:
                say(f"{name} is not heeded: the demo serves this machine, from {self.folder}")
        try:
            self.settings.write_text(self.settings_text())
            with self.daemon() as daemon:
                self.import_model()
                key = self.key()
                self.wait_ready(daemon)
                self.ask(key)
                if not once:
                    self.say_how_to_go_on(key)
                    self.serve_on(daemon)
        except KeyboardInterrupt:
            print("stopped", flush=True)

    def settings_text(self) -> str:
        run_dir = self.folder / "run"
        if len(str(run_dir).encode()) > SOCKET_PATH_BYTES:
            run_dir = Path(tempfile.gettempdir()) / f"bayard-demo-{os.getuid()}"
        return f"""# Written by `bayard demo`; each run writes it anew.
state_dir = {json.dumps(str(self.folder))}
run_dir = {json.dumps(str(run_dir))}
http.host = "127.0.0.1"
http.port = {self.port}
grpc.host = "127.0.0.1"
grpc.port = {self.grpc_port}
tls.enabled = false
"""

    # ------------------------------------------------------------ the daemon

    @contextmanager
    def daemon(self) -> Iterator[subprocess.Popen[bytes]]:
        log = self.folder / "daemon.log"
        say(f"starting the daemon on {self.url} (its log: {log})")
        # As options too: what an administrator changed in an earlier demo would come before the file.
        listening = ["--host", "127.0.0.1", "--port", str(self.port), "--grpc-port", str(self.grpc_port)]
        command = [sys.executable, "-m", "daemon.cli", "serve", *self.where, *listening, "--set", "tls.enabled=false"]
        with log.open("wb") as stream:
            # A session of its own: Ctrl-C reaches this process only, which then stops the daemon properly.
            process = subprocess.Popen(
                command,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            self.until(process, "the daemon", lambda: self.get("/healthz") is not None)
            yield process
        except KeyboardInterrupt:
            print("\nstopping: running answers may finish; Ctrl-C again ends it at once", flush=True)
            raise
        finally:
            stop(process)

    def until(self, daemon: subprocess.Popen[bytes], what: str, done: Any) -> None:
        """Blocks: until done() is true. Raises: BayardError if the daemon ends or the limit passes."""
        limit_mono = time.monotonic() + READY_LIMIT_S
        while not done():
            if daemon.poll() is not None:
                raise ConfigError(f"the daemon ended with status {daemon.returncode}.\n{self.last_log_lines()}")
            if time.monotonic() > limit_mono:
                raise WorkerError(f"{what} was not ready in {READY_LIMIT_S:.0f} s.\n{self.last_log_lines()}")
            time.sleep(0.05)

    def last_log_lines(self, count: int = 20) -> str:
        lines = (self.folder / "daemon.log").read_text(errors="replace").splitlines()
        return "\n".join(f"  | {line}" for line in lines[-count:])

    def get(self, path: str) -> httpx.Response | None:
        try:
            return httpx.get(self.url + path, timeout=5)
        except httpx.TransportError:
            return None

    # ------------------------------------------------------------ by ordinary commands

    def bayard(self, *arguments: str, shown: bool = True) -> str:
        """Run one command and show it as an operator would type it. Raises: ConfigError if it fails."""
        if shown:
            print(f"    $ bayard {' '.join(arguments)}", flush=True)
        command = [sys.executable, "-m", "daemon.cli", *arguments, *self.where]
        done = subprocess.run(
            command, env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=False
        )
        if done.returncode:
            raise ConfigError(f"`bayard {' '.join(arguments)}` ended with status {done.returncode}; see above.")
        return done.stdout

    def import_model(self) -> None:
        models = json.loads(self.bayard("models", "list", "--json", shown=False))
        if not any(item["name"] == MODEL_NAME for item in items_of(models)):
            say("importing the model")
            self.bayard("models", "import", str(self.model), "--name", MODEL_NAME, "--link")

    def key(self) -> str:
        """The demo's key of before if it is still good, else a new one of a new tenant."""
        kept = self.folder / "api-key"
        if kept.exists():
            key = kept.read_text().strip()
            answer = httpx.get(f"{self.url}/v1/models", headers={"authorization": f"Bearer {key}"}, timeout=5)
            if answer.is_success:
                return key
        say("making a tenant and a key for it")
        tenants = json.loads(self.bayard("tenants", "list", "--json", shown=False))
        if not any(item["name"] == "demo" for item in items_of(tenants)):
            self.bayard("tenants", "create", "demo")
        key = self.bayard("keys", "create", "--tenant", "demo").strip()
        kept.touch(mode=0o600)
        kept.write_text(key)
        return key

    def wait_ready(self, daemon: subprocess.Popen[bytes]) -> None:
        say("loading the model")
        shown = ""

        def ready() -> bool:
            nonlocal shown
            answer = self.get("/readyz")
            if answer is None:
                return False
            told = answer.json()
            reason = "; ".join(told.get("reasons", []))
            if WorkerState.LATCHED in told.get("workers", {}).values():  # it will not come up by itself
                raise WorkerError(f"{reason}.", f"Its log: {self.folder / 'logs'}")
            if reason and reason != shown:
                print(f"    {reason}", flush=True)
                shown = reason
            return answer.is_success

        self.until(daemon, "the model", ready)

    # ------------------------------------------------------------ the question

    def ask(self, key: str) -> None:
        try:
            from openai import OpenAI
        except ImportError as error:
            raise ConfigError("the official client is not installed.", "Install it: pip install openai") from error
        say(f"asking through the official OpenAI client: {QUESTION}")
        client = OpenAI(base_url=f"{self.url}/v1", api_key=key)
        asked_mono, first_mono, answer = time.monotonic(), None, ""
        print("    ", end="", flush=True)
        with client.chat.completions.create(
            model=MODEL_NAME,
            messages=[{"role": "user", "content": QUESTION}],
            temperature=0,
            max_tokens=ANSWER_TOKENS,
            stream=True,
        ) as stream:
            for chunk in stream:
                piece = chunk.choices[0].delta.content if chunk.choices else None
                if piece:
                    first_mono = first_mono or time.monotonic()
                    answer += piece
                    print(piece, end="", flush=True)
        print(flush=True)
        if ANSWER not in answer:
            raise WorkerError(f"the answer {answer!r} does not name {ANSWER}.", "The model or the engine is at fault.")
        assert first_mono is not None
        print(
            f"    first token {(first_mono - asked_mono) * 1000:.0f} ms after the question, "
            f"{first_mono - self.began_mono:.1f} s after the start",
            flush=True,
        )

    # ------------------------------------------------------------ and on

    def say_how_to_go_on(self, key: str) -> None:
        question = {"model": MODEL_NAME, "messages": [{"role": "user", "content": QUESTION}]}
        body = json.dumps(question | {"temperature": 0, "max_tokens": ANSWER_TOKENS})
        bayard = Path(sys.executable).with_name("bayard")
        console = f"{bayard} console {' '.join(self.where)}"
        print(
            f"""
Bayard is serving.
  OpenAI API   {self.url}/v1
  gRPC         127.0.0.1:{self.grpc_port}
  metrics      {self.url}/metrics
  API key      {key}
  console      {console}
  try          curl {self.url}/v1/chat/completions -H 'Authorization: Bearer {key}' \\
                 -H 'Content-Type: application/json' -d '{body}'
Ctrl-C stops it.""",
            flush=True,
        )

    def serve_on(self, daemon: subprocess.Popen[bytes]) -> None:
        status = daemon.wait()
        raise WorkerError(f"the daemon ended with status {status}.\n{self.last_log_lines()}")


def items_of(answer: Any) -> list[dict[str, Any]]:
    return list(answer["items"] if isinstance(answer, dict) else answer)


def stop(daemon: subprocess.Popen[bytes]) -> None:
    """As systemd would: ask, wait, then insist. A second Ctrl-C insists at once."""
    if daemon.poll() is not None:
        return
    daemon.send_signal(signal.SIGTERM)
    try:
        daemon.wait(STOP_LIMIT_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        daemon.kill()
        daemon.wait()


def ports() -> tuple[int, int]:
    """Of HTTP and gRPC: what the environment names, else the usual ones, else any. Raises: ConfigError"""
    http, grpc = map(named_port, OWN_PORTS)
    if http is not None and http == grpc:
        raise ConfigError(f"HTTP and gRPC are both to have port {http}.", "Name another for one of them.")
    http = free_port(HTTP_PORT, but=grpc) if http is None else http
    return http, free_port(GRPC_PORT, but=http) if grpc is None else grpc


def named_port(key: str) -> int | None:
    """Raises: ConfigError for one that the demo cannot have"""
    name = variable_of(key)
    text = os.environ.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and int(text) < 2**16):
        raise ConfigError(f"{name} is {text!r}, which is no port.", "Give a number up to 65535, or unset it.")
    port = bound_port(int(text))
    if port is None:
        raise ConfigError(f"{name} is {text}, and that port is taken or not allowed.", "Name another, or unset it.")
    return port


def free_port(wanted: int, but: int | None = None) -> int:
    """The usual port if nobody has it, else any free one."""
    found = None if wanted == but else bound_port(wanted)
    found = bound_port(0) if found is None else found
    if found is None:
        raise BayardError("no port is free on 127.0.0.1.")
    return found


def bound_port(port: int) -> int | None:
    """The port that could be had just now, 0 standing for any; None if it could not."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return None
        return int(probe.getsockname()[1])


def say(what: str) -> None:
    print(f"==> {what}", flush=True)


def _as_interrupt(_: int, __: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
