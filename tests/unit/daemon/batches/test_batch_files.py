"""/v1/files: what is stored, found, read and removed, and what is refused."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import httpx
import openai
import pytest

from daemon.settings import BatchSettings
from daemon.store.base import utc_now
from tests.fakes.batch_client import begin, jsonl, line
from tests.fakes.fake_services import FakeServices

ODD = ["/v1/files/..%2f..%2fbayard.db/content", "/v1/files/file-x/content", "/v1/batches/%00"]


async def test_file_can_be_read_deleted_and_not_while_it_is_used(client: openai.AsyncOpenAI) -> None:
    batch = await begin(client, line(0))
    assert (await client.files.content(batch.input_file_id)).content == jsonl(line(0))
    with pytest.raises(openai.BadRequestError, match="is read by"):
        await client.files.delete(batch.input_file_id)
    free = await client.files.create(file=("x.jsonl", b"{}\n"), purpose="batch")
    assert (await client.files.delete(free.id)).deleted
    with pytest.raises(openai.NotFoundError):
        await client.files.retrieve(free.id)
    pages = [file.id async for file in client.files.list(limit=1)]
    assert pages == [batch.input_file_id]


@pytest.mark.parametrize(
    "path", ["/v1/files/..%2f..%2fbayard.db/content", "/v1/files/file-x/content", "/v1/batches/%00"]
)
async def test_odd_ids_are_not_found(services: FakeServices, url: str, path: str) -> None:
    async with httpx.AsyncClient(base_url=url, headers={"x-api-key": services.key}, trust_env=False) as http:
        assert (await http.get(path)).status_code == 404


@pytest.mark.parametrize(
    ("fields", "files", "status"),
    [
        ({"purpose": "batch"}, None, 400),
        ({"purpose": "fine-tune"}, {"file": ("a", b"{}\n")}, 400),
        ({}, {"file": ("a", b"{}\n")}, 400),
        ({"purpose": "batch", "odd": "1"}, {"file": ("a", b"{}\n")}, 400),
        ({"purpose": "batch"}, {"file": ("a", b"")}, 400),
        ({"purpose": "batch", "expires_after[anchor]": "created_at", "expires_after[seconds]": "7200"},
         {"file": ("a", b"{}\n")}, 200),
        ({"purpose": "batch", "expires_after[seconds]": "1"}, {"file": ("a", b"{}\n")}, 400),
    ],
)  # fmt: skip
async def test_upload_is_checked_and_leaves_nothing_when_refused(
    services: FakeServices, url: str, fields: dict[str, str], files: Any, status: int
) -> None:
    async with httpx.AsyncClient(base_url=url, headers={"x-api-key": services.key}, trust_env=False) as http:
        response = await http.post("/v1/files", data=fields, files=files or {"x": (None, "y")})
    assert response.status_code == status, response.text
    stored = list(services.settings.files_dir.glob("*")) if services.settings.files_dir.exists() else []
    assert len(stored) == int(status == 200)


async def test_upload_bounds_are_those_set(services: FakeServices, url: str) -> None:
    tight = BatchSettings(max_file_bytes=1024, max_stored_bytes=4096)
    services.batches.settings = tight
    async with httpx.AsyncClient(base_url=url, headers={"x-api-key": services.key}, trust_env=False) as http:
        large = await http.post(
            "/v1/files", data={"purpose": "batch"}, files={"file": ("a", b"x" * (1024 + (64 << 10)))}
        )
        assert large.status_code in (413, 429)
        assert (await http.post("/v1/files", content=b"x", headers={"content-type": "text/plain"})).status_code == 400
        broken = await http.post(
            "/v1/files", content=b"--b\r\nbroken", headers={"content-type": "multipart/form-data; boundary=b"}
        )
        assert broken.status_code == 400
    assert not services.settings.files_dir.exists() or not list(services.settings.files_dir.iterdir())


async def test_tidying_removes_what_has_expired(client: openai.AsyncOpenAI, services: FakeServices) -> None:
    file = await client.files.create(file=("x.jsonl", b"{}\n"), purpose="batch")
    kept = await begin(client, line(0))
    far = utc_now() + timedelta(days=services.settings.batches.keep_days + 1)
    await services.batches.tidy(far)
    with pytest.raises(openai.NotFoundError):
        await client.files.retrieve(file.id)
    assert not services.batches.shelf.path(file.id).exists()
    assert (await client.files.retrieve(kept.input_file_id)).id == kept.input_file_id
    stranger = services.batches.shelf.new_id()
    services.batches.shelf.append(stranger, b"x\n")
    await services.batches.remove_strangers()
    assert services.batches.shelf.path(stranger).exists()
    await services.batches.remove_strangers(untouched_s=0.0)
    assert not services.batches.shelf.path(stranger).exists()
    assert services.batches.shelf.path(kept.input_file_id).exists()
