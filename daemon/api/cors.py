"""Cross-origin calls from web pages: refused unless the operator names the pages' origins."""

from __future__ import annotations

from dataclasses import dataclass

Headers = tuple[tuple[bytes, bytes], ...]

_EXPOSED = b"x-request-id, request-id, retry-after, retry-after-ms"
_MAX_AGE_S = b"600"


@dataclass(frozen=True, slots=True)
class Cors:
    """Made from the setting http.cors_origins. Empty: no header is sent, and browsers refuse such calls themselves."""

    origins: frozenset[bytes] = frozenset()

    @classmethod
    def of(cls, setting: str) -> Cors:
        return cls(frozenset(origin.encode() for origin in setting.split()))

    def headers(self, origin: bytes | None) -> Headers:
        """Of every answer to a call from this origin."""
        if not self.origins:
            return ()
        vary = ((b"vary", b"Origin"),)
        if not self._allows(origin):
            return vary
        assert origin is not None
        return ((b"access-control-allow-origin", origin), (b"access-control-expose-headers", _EXPOSED), *vary)

    def preflight(self, origin: bytes | None, wanted: bytes | None, methods: tuple[str, ...]) -> Headers | None:
        """Headers of the answer to a browser's question; None: it is answered as any other OPTIONS.

        wanted: the headers that the page would send
        """
        if not methods or not self._allows(origin):
            return None
        allowed: Headers = ((b"access-control-allow-methods", ", ".join(methods).encode()),)
        if wanted is not None:
            allowed += ((b"access-control-allow-headers", wanted),)
        return (*allowed, (b"access-control-max-age", _MAX_AGE_S))

    def _allows(self, origin: bytes | None) -> bool:
        return origin is not None and (origin in self.origins or b"*" in self.origins)
