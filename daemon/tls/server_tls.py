"""ServerTls: the certificate that every server shows, followed on the disk, so that a new one needs no restart."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from daemon.settings import TlsSettings
from daemon.store.base import utc_now
from daemon.tls.authority import Authority, CertificateFacts, facts_of
from engine.errors import ConfigError

if TYPE_CHECKING:
    from grpc import ServerCredentials

log = structlog.get_logger("bayard.tls")


class ServerTls:
    """Owner: the Appliance. Raises: ConfigError where the files cannot be used."""

    def __init__(self, settings: TlsSettings, state_dir: Path) -> None:
        self._settings = settings
        own = Authority(state_dir / "tls")
        self.cert_file = Path(settings.cert_file) if settings.cert_file else own.server_cert
        self.key_file = Path(settings.key_file) if settings.key_file else own.server_key
        if not self.cert_file.exists() and not settings.cert_file:
            raise ConfigError(
                f"TLS is on, and there is no certificate {self.cert_file}.",
                "Make one with `bayard tls init`, or name your own with tls.cert_file and tls.key_file.",
            )
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        if settings.client_certificates != "none":
            if not settings.client_ca_file:
                raise ConfigError(
                    f"tls.client_certificates is {settings.client_certificates!r} and tls.client_ca_file is empty.",
                    "Name the file of the authority that signs clients' certificates.",
                )
            required = settings.client_certificates == "required"
            self.context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
        self._loaded: tuple[int, ...] = ()
        self.generation = 0
        self.problem: str | None = None  # why what lies on the disk now is not used
        self.load()

    def load(self) -> None:
        """Take the files as they are now; connections that are open keep what they had. Raises: ConfigError"""
        stamp = self._stamp()
        try:
            self.context.load_cert_chain(self.cert_file, self.key_file)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"the certificate {self.cert_file} with the key {self.key_file} cannot be used: {error}.",
                "The key has to belong to the certificate, both as PEM.",
            ) from error
        if self._settings.client_ca_file:
            try:
                self.context.load_verify_locations(self._settings.client_ca_file)
            except (OSError, ssl.SSLError) as error:
                raise ConfigError(
                    f"tls.client_ca_file, {self._settings.client_ca_file}, cannot be used: {error}.",
                    "It has to hold the certificate of the authority that signs clients' certificates, as PEM.",
                ) from error
        self._loaded = stamp
        self._until_at = self.facts().not_after_at
        self.generation += 1

    def look(self) -> bool:
        """Load what has changed on the disk; True if it did. A broken new one leaves the old in use, and is told."""
        try:
            stamp = self._stamp()
            if stamp == self._loaded:
                return False
            self.load()
        except ConfigError as error:
            if self._loaded:
                log.error("certificate_not_loaded", error=str(error))
            self._loaded, self.problem = (), error.message
            return False
        self.problem = None
        log.info("certificate_loaded", path=str(self.cert_file), until=self.facts().not_after_at.isoformat())
        return True

    @property
    def left_s(self) -> float:
        """Until the certificate in use expires."""
        return (self._until_at - utc_now()).total_seconds()

    def facts(self) -> CertificateFacts:
        """Raises: ConfigError"""
        return facts_of(self.cert_file)

    def grpc_credentials(self) -> ServerCredentials:
        """Credentials that follow the files by themselves, at each new connection."""
        import grpc

        required = self._settings.client_certificates == "required"
        told = self.generation

        def configuration() -> grpc.ServerCertificateConfiguration:
            ca = Path(self._settings.client_ca_file).read_bytes() if self._settings.client_ca_file else None
            pair = (self.key_file.read_bytes(), self.cert_file.read_bytes())
            return grpc.ssl_server_certificate_configuration([pair], root_certificates=ca)

        def newer() -> grpc.ServerCertificateConfiguration | None:
            nonlocal told
            if told == self.generation:
                return None
            told = self.generation
            return configuration()

        # its stubs do not say that None keeps what there is
        return grpc.dynamic_ssl_server_credentials(configuration(), newer, required)  # type: ignore[arg-type]

    def _stamp(self) -> tuple[int, ...]:
        files = [self.cert_file, self.key_file]
        if self._settings.client_ca_file:
            files.append(Path(self._settings.client_ca_file))
        try:
            return tuple(fact for file in files for fact in (file.stat().st_mtime_ns, file.stat().st_ino))
        except OSError as error:
            raise ConfigError(f"a file of TLS cannot be read: {error}.", "Check tls.cert_file and its mode.") from error
