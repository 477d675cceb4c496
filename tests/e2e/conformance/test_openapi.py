"""Case C44: requests made from the server's own OpenAPI document find no fault and no undocumented answer.

A short run here; BAYARD_SCHEMATHESIS_S=600 makes it ten minutes.
"""

from __future__ import annotations

import os
import time
from typing import Any

import httpx
import hypothesis
import pytest

from tests.fakes.real_server import RealServer

schemathesis: Any = pytest.importorskip("schemathesis", reason="schemathesis is not installed")

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::ResourceWarning"),
    pytest.mark.timeout(1200),
]

SECONDS = float(os.environ.get("BAYARD_SCHEMATHESIS_S", "0"))  # of all operations; 0: one batch of each
BATCH = 10
MOST_TOKENS = 4
MAX_TOKENS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


def bound(case: Any) -> None:
    """Name the served model in most requests and ask for few tokens, so that many are tried."""
    body = case.body
    if not isinstance(body, dict):
        return
    if len(str(body)) % 3:
        body["model"] = "smollm"
    for name in MAX_TOKENS:
        if type(body.get(name)) is int and body[name] > MOST_TOKENS:
            body[name] = MOST_TOKENS


def test_c44_no_server_fault_and_no_undocumented_answer(server: RealServer) -> None:
    document = httpx.get(server.url + "/openapi.json").json()
    schema = schemathesis.openapi.from_dict(document)
    found = [result.ok() for result in schema.get_all_operations()]
    operations = [operation for operation in found if not uploads(operation)]
    each_s = SECONDS / len(operations)
    tried = 0
    key = server.new_key("schemathesis", max_output_tokens=MOST_TOKENS)
    with httpx.Client(base_url=server.url, headers={"x-api-key": key}, timeout=60, trust_env=False) as http:
        for operation in operations:
            tried += exercise(operation, http, each_s)
    print(f"{tried:,} requests of {len(operations)} operations")
    assert tried >= len(operations)


def uploads(operation: Any) -> bool:
    """Forms are not made here; their route has tests of its own."""
    return "multipart/form-data" in operation.definition.raw.get("requestBody", {}).get("content", {})


def exercise(operation: Any, http: httpx.Client, seconds: float) -> int:
    """Batches of requests of one operation for so long, and one at least; how many requests there were."""
    until = time.monotonic() + seconds
    tried = 0
    told = set(operation.definition.raw["responses"])

    @hypothesis.settings(
        max_examples=BATCH,
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate],
    )
    @hypothesis.given(case=operation.as_strategy())
    def batch(case: Any) -> None:
        nonlocal tried
        tried += 1
        bound(case)
        request = {key: value for key, value in case.as_transport_kwargs().items() if key not in ("cookies", "headers")}
        response = http.request(request.pop("method"), request.pop("url"), **request)
        where = f"{operation.label} {str(case.body)[:2000]} -> {response.status_code} {response.text[:500]}"
        assert response.status_code < 500 or response.status_code == 503, where
        assert str(response.status_code) in told, where

    number = 0
    while number == 0 or time.monotonic() < until:
        hypothesis.seed(number)(batch)()
        number += 1
    return tried


@pytest.mark.parametrize("method", ["DELETE", "PATCH", "PUT"])
def test_c44_undeclared_methods_are_405(server: RealServer, method: str) -> None:
    document = httpx.get(server.url + "/openapi.json").json()
    with httpx.Client(base_url=server.url, headers={"x-api-key": server.key}, trust_env=False) as http:
        for path, operations in document["paths"].items():
            if method.lower() not in operations:
                response = http.request(method, path.replace("{id}", "x"))
                assert response.status_code == 405, path
                assert set(response.headers["allow"].split(", ")) - {"HEAD"} == {name.upper() for name in operations}
