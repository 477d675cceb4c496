"""A served public API around a fake engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import openai
import pytest

from daemon.api.http import build_app
from tests.fakes.fake_services import FakeServices, fake_services, http_server


@pytest.fixture
async def services(tmp_path: Path) -> AsyncIterator[FakeServices]:
    async with fake_services(tmp_path) as made:
        yield made


@pytest.fixture
async def base_url(services: FakeServices) -> AsyncIterator[str]:
    async with http_server(build_app(services)) as url:
        yield url


@pytest.fixture
async def http(services: FakeServices, base_url: str) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"authorization": f"Bearer {services.key}"}
    async with httpx.AsyncClient(base_url=base_url, headers=headers, timeout=20, trust_env=False) as client:
        yield client


@pytest.fixture
async def client(services: FakeServices, base_url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=base_url + "/v1", api_key=services.key, max_retries=0) as made:
        yield made
