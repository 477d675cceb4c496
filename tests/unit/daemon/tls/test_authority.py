"""The box's own authority: certificates that clients accept, renewed under them, and old and new trusted together."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from daemon.listeners import listen_tcp
from daemon.servers import HttpServer
from daemon.settings import TlsSettings
from daemon.tls.authority import SERVER_DAYS, Authority, facts_of
from daemon.tls.server_tls import ServerTls
from engine.errors import ConfigError, Conflict


@pytest.fixture
def own(tmp_path: Path) -> Authority:
    made = Authority(tmp_path / "tls")
    made.init(["localhost", "127.0.0.1"])
    return made


async def app(scope: dict[str, object], receive: object, send: object) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})  # type: ignore[operator]
    await send({"type": "http.response.body", "body": str(scope["scheme"]).encode()})  # type: ignore[operator]


@asynccontextmanager
async def served(tls: ServerTls) -> AsyncIterator[str]:
    server = HttpServer("t", app, listen_tcp("127.0.0.1", 0, "http"), tls=tls.context)
    await server.start()
    try:
        yield f"https://localhost:{server.port}"
    finally:
        await server.stop()


async def get(url: str, ca: Path) -> str:
    context = ssl.create_default_context(cafile=str(ca))
    async with httpx.AsyncClient(verify=context, trust_env=False) as client:
        return (await client.get(url)).text


def test_files_are_private_and_say_what_they_are(own: Authority) -> None:
    facts = facts_of(own.server_cert)
    assert facts.names == ("localhost", "127.0.0.1")
    assert SERVER_DAYS - 1 < facts.left_s / 86_400 < SERVER_DAYS + 1
    assert {path.name: path.stat().st_mode & 0o777 for path in own.folder.iterdir()} == {
        "ca.crt": 0o644,
        "ca.key": 0o600,
        "server.crt": 0o644,
        "server.key": 0o600,
    }
    with pytest.raises(Conflict, match="tls rotate"):
        own.init(["x"])
    with pytest.raises(ConfigError, match="tls init"):
        Authority(own.folder / "none").rotate()
    with pytest.raises(ConfigError):
        facts_of(own.ca_key)


async def test_new_certificate_is_shown_without_a_restart(own: Authority, tmp_path: Path) -> None:
    tls = ServerTls(TlsSettings(enabled=True), tmp_path)
    async with served(tls) as url:
        assert await get(url, own.ca_cert) == "https"
        assert tls.look() is False
        first = facts_of(own.server_cert).fingerprint
        assert own.rotate().names == ("localhost", "127.0.0.1")
        assert tls.look() is True
        assert facts_of(own.server_cert).fingerprint != first
        assert await get(url, own.ca_cert) == "https"


async def test_clients_of_the_old_authority_go_on_and_new_ones_need_the_new_one_alone(
    own: Authority, tmp_path: Path
) -> None:
    tls = ServerTls(TlsSettings(enabled=True), tmp_path)
    old_ca = tmp_path / "old.crt"
    old_ca.write_bytes(own.ca_cert.read_bytes())
    async with served(tls) as url:
        own.rotate(authority=True)
        assert await get(url, own.ca_cert) == "https"  # still the old certificate: both authorities are trusted
        assert tls.look() is True
        assert await get(url, own.ca_cert) == "https"
        assert await get(url, old_ca) == "https", "the old authority has signed the new one"
        new_alone = tmp_path / "new.crt"
        whole = own.ca_cert.read_text()
        new_alone.write_text(whole[: whole.index("-----END CERTIFICATE-----") + len("-----END CERTIFICATE-----")])
        assert await get(url, new_alone) == "https"
        own.rotate()
        assert tls.look() is True
        for ca in (old_ca, new_alone, own.ca_cert):
            assert await get(url, ca) == "https"
        stranger = Authority(tmp_path / "stranger")
        stranger.init(["localhost"])
        with pytest.raises(httpx.ConnectError, match="verify failed"):
            await get(url, stranger.ca_cert)


async def test_broken_new_certificate_leaves_the_old_in_use(own: Authority, tmp_path: Path) -> None:
    tls = ServerTls(TlsSettings(enabled=True), tmp_path)
    whole = own.server_cert.read_bytes()
    async with served(tls) as url:
        own.server_cert.write_text("nonsense")
        assert tls.look() is False
        assert tls.problem is not None
        own.server_cert.unlink()
        assert tls.look() is False
        own.server_cert.write_bytes(whole)
        assert tls.look() is True
        assert tls.problem is None
        assert await get(url, own.ca_cert) == "https"


@pytest.mark.parametrize("lost", [True, False])
def test_certificate_that_is_lost_or_broken_is_made_anew_for_given_names(own: Authority, lost: bool) -> None:
    own.server_cert.unlink() if lost else own.server_cert.write_text("nonsense")
    with pytest.raises(ConfigError, match="names are not known"):
        own.rotate()
    assert own.rotate(["box.site"]).names == ("box.site",)
    assert own.rotate().names == ("box.site",)


async def test_clients_certificates_are_required_where_the_setting_says_so(own: Authority, tmp_path: Path) -> None:
    client = Authority(tmp_path / "clients")
    client.init(["app"])
    settings = TlsSettings(enabled=True, client_certificates="required", client_ca_file=str(client.ca_cert))
    async with served(ServerTls(settings, tmp_path)) as url:
        with pytest.raises((httpx.ReadError, httpx.ConnectError, httpx.RemoteProtocolError)):
            await get(url, own.ca_cert)
    with pytest.raises(ConfigError, match="client_ca_file is empty"):
        ServerTls(TlsSettings(enabled=True, client_certificates="asked"), tmp_path)
    broken = TlsSettings(enabled=True, client_certificates="asked", client_ca_file=str(client.ca_key))
    with pytest.raises(ConfigError, match=r"client_ca_file, .*ca\.key, cannot be used"):
        ServerTls(broken, tmp_path)


def test_what_is_missing_or_does_not_fit_is_a_matter_of_configuration(own: Authority, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="bayard tls init"):
        ServerTls(TlsSettings(enabled=True), tmp_path / "elsewhere")
    other = Authority(tmp_path / "other")
    other.init(["x"])
    with pytest.raises(ConfigError, match="has to belong"):
        ServerTls(TlsSettings(cert_file=str(own.server_cert), key_file=str(other.server_key)), tmp_path)


async def test_grpc_shows_the_new_certificate_too(own: Authority, tmp_path: Path) -> None:
    import grpc

    tls = ServerTls(TlsSettings(enabled=True), tmp_path)
    server = grpc.aio.server()
    port = server.add_secure_port("localhost:0", tls.grpc_credentials())
    await server.start()
    try:
        for _ in range(2):
            credentials = grpc.ssl_channel_credentials(own.ca_cert.read_bytes())
            async with grpc.aio.secure_channel(f"localhost:{port}", credentials) as channel:
                await asyncio.wait_for(channel.channel_ready(), 5)
            own.rotate(authority=True)
            os.utime(own.server_cert)
            assert tls.look() is True
    finally:
        await server.stop(0)
