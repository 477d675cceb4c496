"""A daemon with TLS: HTTP, gRPC and the admin port with its keys, a rotation under it, and settings read again."""

from __future__ import annotations

import json
import signal
import ssl
from typing import Any

import httpx

from tests.e2e.daemon.conftest import Daemon


def client_of(daemon: Daemon, url: str, key: str) -> httpx.Client:
    context = ssl.create_default_context(cafile=str(daemon.state_dir / "tls" / "ca.crt"))
    return httpx.Client(
        base_url=url, verify=context, trust_env=False, headers={"authorization": f"Bearer {key or 'none'}"}
    )


def fingerprint(daemon: Daemon) -> str:
    items: list[dict[str, Any]] = daemon.admin("certificates")["items"]
    return next(str(item["fingerprint"]) for item in items if item["kind"] == "server")


def test_tls_admin_port_rotation_and_reload(daemon: Daemon) -> None:
    daemon.command("tls", "init")
    daemon.command("tenants", "create", "ops")
    keys = {
        role: daemon.command("keys", "create", "--tenant", "ops", "--role", role).stdout.strip()
        for role in ("inference", "operator", "admin")
    }
    config = daemon.state_dir / "bayard.toml"
    config.write_text("[limits]\nmax_queue = 7\n")
    daemon.env["BAYARD_CONFIG"] = str(config)
    flags = ("--set", "tls.enabled=true", "--set", "tls.admin_port=0")
    daemon.start(*flags)
    status = daemon.admin("status")
    assert status["http"].startswith("https://")
    with client_of(daemon, status["http"].replace("127.0.0.1", "localhost"), keys["inference"]) as http:
        assert http.get("/v1/models").status_code == 200
    with client_of(daemon, status["admin_tls"].replace("127.0.0.1", "localhost"), keys["operator"]) as admin:
        assert admin.get("/admin/v1/whoami").json()["role"] == "operator"
        assert admin.post("/admin/v1/admission/pause").status_code == 200
        assert admin.post("/admin/v1/admission/resume").status_code == 200
        assert admin.post("/admin/v1/tenants", json={"name": "x"}).status_code == 403
        for key, code in (("", 401), ("bk_live_wrong", 401), (keys["inference"], 403)):
            answer = admin.get("/admin/v1/whoami", headers={"authorization": f"Bearer {key or 'none'}"})
            assert answer.status_code == code, key
        admin.headers["authorization"] = f"Bearer {keys['admin']}"
        assert admin.post("/admin/v1/tenants", json={"name": "made-by-key"}).status_code == 201
    newest = daemon.admin("audit?limit=1")["items"][0]
    assert (newest["action"], newest["origin"]) == ("tenant.create", "tls 127.0.0.1")
    assert newest["actor"].endswith("..@ops")
    assert keys["admin"] not in json.dumps(daemon.admin("audit"))

    before = fingerprint(daemon)
    daemon.command("tls", "rotate")
    assert fingerprint(daemon) != before
    with client_of(daemon, status["http"].replace("127.0.0.1", "localhost"), keys["inference"]) as http:
        assert http.get("/v1/models").status_code == 200

    config.write_text("[limits]\nmax_queue = 9\n[http]\nmetrics_key = true\nport = 1\n")
    assert daemon.process is not None
    daemon.process.send_signal(signal.SIGHUP)
    daemon.until(lambda: daemon.admin("admission")["max_queue"] == 9)
    assert "http.port" not in daemon.command("config", "reload").stdout  # a flag stands above the file
    with client_of(daemon, status["http"].replace("127.0.0.1", "localhost"), "") as http:
        assert http.get("/metrics").status_code == 401
    config.write_text("[limits]\nmax_queue = none\n")
    failed = daemon.command("config", "reload", ok=False)
    assert failed.returncode != 0
    assert daemon.admin("admission")["max_queue"] == 9
