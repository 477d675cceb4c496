"""docs/api.md names every route and every field, and no other field."""

from __future__ import annotations

import re
from pathlib import Path

from daemon.api.grpc.gen import bayard_pb2 as pb
from daemon.api.openai.chat_request import ChatBody
from daemon.api.openai.completion_request import CompletionBody
from daemon.api.routes import public_table

TEXT = (Path(__file__).resolve().parents[4] / "docs" / "api.md").read_text(encoding="utf-8")


def test_every_route_and_service_is_documented() -> None:
    for route in public_table().routes:
        assert f"`{route.method} {route.template}`" in TEXT
    for service in pb.DESCRIPTOR.services_by_name.values():
        assert service.full_name in TEXT
        for method in service.methods:
            assert f"`{method.name}`" in TEXT


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
