"""docs/api.md names every route and every field, and no other field."""

from __future__ import annotations

import re
from pathlib import Path

from daemon.api.anthropic.request import MessagesBody
from daemon.api.batches.handlers import BatchBody
from daemon.api.embeddings.request import EmbeddingsBody
from daemon.api.embeddings.rerank import RerankBody
from daemon.api.grpc.gen import bayard_pb2 as pb
from daemon.api.grpc.gen import kserve_pb2 as kp
from daemon.api.ollama import request as ollama
from daemon.api.openai.chat_request import ChatBody
from daemon.api.openai.completion_request import CompletionBody
from daemon.api.routes import public_table

OLLAMA = (ollama.ChatBody, ollama.GenerateBody, ollama.EmbedBody)
TEXT = (Path(__file__).resolve().parents[4] / "docs" / "api.md").read_text(encoding="utf-8")


def test_every_route_and_service_is_documented() -> None:
    for route in public_table().routes:
        assert f"`{route.method} {route.template}`" in TEXT
    for file in (pb.DESCRIPTOR, kp.DESCRIPTOR):
        for service in file.services_by_name.values():
            assert service.full_name in TEXT
            for method in service.methods:
                assert f"`{method.name}`" in TEXT


def test_every_field_beyond_openai_is_documented() -> None:
    told = TEXT.split("## Beyond OpenAI")[1].split("## Admin API")[0]
    bodies = (BatchBody, EmbeddingsBody, RerankBody, MessagesBody, *OLLAMA)
    common = {"model", "prompt", "raw", "shift"}
    for body in bodies:
        for field in set(body.__struct_fields__) - common:
            assert f"`{field}`" in told, f"{body.__name__}.{field}"


def test_every_field_is_documented_for_its_route() -> None:
    table = TEXT.split("## Fields")[1].split("**Limits**")[0]
    told: dict[str, set[str]] = {"chat": set(), "completions": set()}
    for names, where in re.findall(r"^\| (`.*?`) \| ([a-z, ]+) \|", table, re.MULTILINE):
        for name in re.findall(r"`(\w+)`", names):
            for route in told:
                if route in where or "both" in where:
                    told[route].add(name)
    assert told["chat"] >= set(ChatBody.__struct_fields__)
    assert told["completions"] >= set(CompletionBody.__struct_fields__)
    assert told["chat"] | told["completions"] == {*ChatBody.__struct_fields__, *CompletionBody.__struct_fields__}
