"""A batch through a daemon that is killed in the middle, and then stopped: every line is answered once."""

from __future__ import annotations

import json
import re
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.daemon.conftest import FAKE, MODEL, Daemon

LINES = 56
CHAT = "/v1/chat/completions"


@pytest.fixture
def daemon_of_fakes(smollm_path: Path) -> Iterator[Daemon]:
    with tempfile.TemporaryDirectory(prefix="bd-") as folder:
        daemon = Daemon(Path(folder), {"BAYARD_WORKERS_COMMAND": FAKE})
        daemon.script(token_s=0.15)  # a few seconds of work: progress is told every other second
        daemon.command("models", "import", str(smollm_path), "--name", MODEL, "--link")
        daemon.command("tenants", "create", "demo")
        try:
            yield daemon
        finally:
            daemon.stop()


def client_of(daemon: Daemon, key: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=daemon.url + "/v1", api_key=key, max_retries=3)


def until(client: openai.OpenAI, batch_id: str, done: int) -> Any:
    """The batch once so many of its lines are answered, or it has ended."""
    for _ in range(600):
        batch = client.batches.retrieve(batch_id)
        if batch.status == "completed" or batch.request_counts.completed >= done:
            return batch
        time.sleep(0.05)
    raise AssertionError(f"{batch} has not come to {done}")


def test_every_line_is_answered_once_over_kills(daemon_of_fakes: Daemon) -> None:
    daemon = daemon_of_fakes
    found = re.search(r"bk_live_\S+", daemon.command("keys", "create", "--tenant", "demo").stdout)
    assert found is not None
    key = found.group()
    asked = [
        {"custom_id": f"r{at}", "method": "POST", "url": CHAT,
         "body": {"model": MODEL, "messages": [{"role": "user", "content": f"{at}"}], "max_tokens": 6,
                  "ignore_eos": True}}
        for at in range(LINES)
    ]  # fmt: skip
    daemon.start()
    with client_of(daemon, key) as client:
        content = "".join(json.dumps(one) + "\n" for one in asked).encode()
        file = client.files.create(file=("in.jsonl", content), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    for ended_after, way in ((8, signal.SIGKILL), (24, signal.SIGTERM)):
        with client_of(daemon, key) as client:
            assert until(client, batch.id, ended_after).status == "in_progress"
        assert daemon.process is not None
        daemon.process.send_signal(way)
        daemon.wait(20.0)  # a batch is not waited for
        daemon.start()
    with client_of(daemon, key) as client:
        done = until(client, batch.id, LINES + 1)
        assert (done.status, done.request_counts.completed, done.error_file_id) == ("completed", LINES, None)
        answers = [json.loads(line) for line in client.files.content(done.output_file_id).text.splitlines()]
    assert sorted(one["custom_id"] for one in answers) == sorted(one["custom_id"] for one in asked)
    assert all(one["response"]["body"]["usage"]["completion_tokens"] == 6 for one in answers)
