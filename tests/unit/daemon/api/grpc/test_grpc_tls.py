"""gRPC with TLS and with clients' certificates, beside a unix socket in the clear."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from grpc import aio

from daemon.api.grpc.gen import bayard_pb2 as pb
from daemon.api.grpc.gen import bayard_pb2_grpc as stubs
from daemon.api.grpc.server import build_server
from daemon.servers import Grpc
from daemon.settings import TlsSettings
from daemon.tls.authority import Authority
from daemon.tls.server_tls import ServerTls
from tests.fakes.fake_services import MODEL, FakeServices


async def models(channel: aio.Channel, services: FakeServices) -> list[str]:
    metadata = (("authorization", f"Bearer {services.key}"),)
    answer = await stubs.InferenceStub(channel).ListModels(pb.ListModelsRequest(), metadata=metadata, timeout=5)
    return [model.id for model in answer.models]


def client_certificate() -> tuple[bytes, dict[str, bytes]]:
    """A certificate that signs itself, and what a client shows with it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "app")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = made.public_bytes(Encoding.PEM)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return pem, {"private_key": private, "certificate_chain": pem}


@pytest.mark.parametrize("required", [False, True])
async def test_tls_and_client_certificates(services: FakeServices, tmp_path: Path, required: bool) -> None:
    own = Authority(tmp_path / "tls")
    own.init(["localhost", "127.0.0.1"])
    authority, pair = client_certificate()
    (tmp_path / "clients.pem").write_bytes(authority)
    asked: dict[str, Any] = {"client_certificates": "required", "client_ca_file": str(tmp_path / "clients.pem")}
    tls = ServerTls(TlsSettings(enabled=True, **(asked if required else {})), tmp_path)
    root = own.ca_cert.read_bytes()
    with tempfile.TemporaryDirectory(prefix="bd-") as folder:
        path = Path(folder) / "grpc.sock"
        server = Grpc(build_server(services), "127.0.0.1", 0, path, tls.grpc_credentials())
        await server.start()
        try:
            target = f"localhost:{server.port}"
            shown = grpc.ssl_channel_credentials(root, **(pair if required else {}))
            async with aio.secure_channel(target, shown) as channel:
                assert await models(channel, services) == [MODEL]
            async with aio.insecure_channel(f"unix:{path}") as channel:
                assert await models(channel, services) == [MODEL]
            refused = [aio.insecure_channel(target)]
            if required:
                refused.append(aio.secure_channel(target, grpc.ssl_channel_credentials(root)))
            for channel in refused:
                with pytest.raises(aio.AioRpcError) as caught:
                    await models(channel, services)
                assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
                await channel.close()
        finally:
            await server.stop()
