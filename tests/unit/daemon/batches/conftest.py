"""A served API with files and batches, around a fake engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest

from daemon.api.http import build_app
from tests.fakes.fake_services import FakeServices, fake_services, http_server


@pytest.fixture
async def services(tmp_path: Path) -> AsyncIterator[FakeServices]:
    async with fake_services(tmp_path) as made:
        yield made


@pytest.fixture
async def url(services: FakeServices) -> AsyncIterator[str]:
    async with http_server(build_app(services)) as made:
        yield made


@pytest.fixture
async def client(services: FakeServices, url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=url + "/v1", api_key=services.key, max_retries=0) as made:
        yield made
