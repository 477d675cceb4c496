"""Cases C05, C14 and C29 with openai-js and the AI SDK.

They need node and the packages of js/package.json, which nothing here fetches: `npm install` in that folder, or
BAYARD_JS_CLIENTS names another folder that holds node_modules.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.real_server import RealServer, real_server

HERE = Path(__file__).parent / "js"


@pytest.fixture(scope="module")
def folder() -> Path:
    """Where the script may be run: beside its packages."""
    named = Path(os.environ.get("BAYARD_JS_CLIENTS") or HERE)
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    if not (named / "node_modules" / "openai").is_dir():
        pytest.skip(f"the JavaScript clients are not installed: npm install in {HERE.name}/, or set BAYARD_JS_CLIENTS")
    if named != HERE:
        shutil.copy(HERE / "clients.mjs", named)
    return named


def run(server: RealServer, folder: Path, case: str) -> Any:
    environment = {"PATH": os.environ["PATH"], "URL": server.url, "KEY": server.key}
    command = ["node", "clients.mjs", case]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_c05_stream_helper_resolves(server: RealServer, folder: Path) -> None:
    found = run(server, folder, "stream")
    assert found["streamed"] == found["whole"] != ""


def test_responses_helper_resolves(server: RealServer, folder: Path) -> None:
    found = run(server, folder, "responses")
    assert found["kinds"][0] == "response.created"
    assert found["kinds"][-1] == "response.completed"


@pytest.fixture(scope="module")
def encoder(folder: Path, minilm_path: Path) -> Iterator[RealServer]:
    """A server with the small encoder; only where it will be asked."""
    with real_server({"minilm": minilm_path}) as made:
        yield made


def test_c29_embedding_has_its_native_dimension_and_is_what_floats_say(encoder: RealServer, folder: Path) -> None:
    found = run(encoder, folder, "embedding")
    assert len(found["usual"]) == len(found["plain"]) == 384
    assert found["usual"] == pytest.approx(found["plain"], abs=1e-6)


@pytest.mark.parametrize("case", ["compatible", "chat", "aiResponses"])
def test_c14_required_tool_is_called(server: RealServer, folder: Path, case: str) -> None:
    found = run(server, folder, case)
    assert found["finish"] == "tool-calls"
    assert found["calls"]
    for call in found["calls"]:
        assert call["name"] == "weather"
        assert set(call["input"]) == {"city", "days"}
    if case != "compatible":  # which does not ask for the usage of a stream
        assert found["usage"]["outputTokens"] > 0
