"""The public OpenAPI document tells every route, and answers are those it tells."""

from __future__ import annotations

from typing import Any

import httpx

from daemon.api.http import PublicApp
from tests.fakes.fake_services import MODEL, FakeServices


async def test_document_has_every_route_and_resolves_its_references(
    http: httpx.AsyncClient, services: FakeServices
) -> None:
    document = (await http.get("/openapi.json")).json()
    told = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert told == {(route.method, route.template) for route in PublicApp(services).table.routes}
    for reference in references(document):
        assert reference.removeprefix("#/components/schemas/") in document["components"]["schemas"]


async def test_keyed_routes_tell_their_security_and_statuses(http: httpx.AsyncClient, services: FakeServices) -> None:
    paths = (await http.get("/openapi.json")).json()["paths"]
    for route in PublicApp(services).table.routes:
        operation = paths[route.template][route.method.lower()]
        assert ("security" in operation) == (route.auth.value == "key")
    told = set(paths["/v1/chat/completions"]["post"]["responses"])
    for body, status in (
        ({"model": MODEL}, "400"),
        ({"model": "x", "messages": [{"role": "user", "content": "x"}]}, "404"),
    ):
        response = await http.post("/v1/chat/completions", json=body)
        assert str(response.status_code) == status
        assert status in told


def references(node: Any) -> list[str]:
    if isinstance(node, dict):
        found = [value for key, value in node.items() if key == "$ref"]
        return found + [one for value in node.values() for one in references(value)]
    if isinstance(node, list):
        return [one for value in node for one in references(value)]
    return []
