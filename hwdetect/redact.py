"""Take out of a text what names a person, a machine or a secret; what tells about hardware stays."""

from __future__ import annotations

import getpass
import re
import socket

_UUID = r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
_OCTET = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
_SECRET_KEY = r"[\"']?[\w.-]*(?:password|passwd|secret|api_?key|credential)[\w.-]*[\"']?"
_TOKEN_KEY = r"[\"']?[\w.-]*token[\w.-]*[\"']?"  # a number after it counts tokens

# pattern -> what stands there afterwards, in this order
_RULES = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", "<private key>"),
        (r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}", r"\1 <secret>"),
        (r"\b(?:sk|bk|hf|ghp|gho|glpat|xox[bap]|byd|bayard)[-_][A-Za-z0-9_-]{8,}", "<secret>"),
        (r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?", "<token>"),
        (rf"(?i)({_SECRET_KEY}\s*[:=]\s*)(\"[^\"\n]*\"|'[^'\n]*'|[^\s,}}&]+)", r"\1<secret>"),
        (
            rf"(?i)({_TOKEN_KEY}\s*[:=]\s*)(?!-?\d[\d.]*\s*[,}}\n]|null)(\"[^\"\n]*\"|'[^'\n]*'|[^\s,}}&]+)",
            r"\1<secret>",
        ),
        (r"([a-z][a-z0-9+.-]{1,20}://)[^/\s:@\"]+(?::[^@\s/\"]*)?@", r"\1<credentials>@"),
        (r"[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+", "<email>"),
        (rf"\b(GPU-|MIG-|NPU-)?{_UUID}\b", r"\1<uuid>"),
        (r"\b(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}\b", "<mac>"),
        (rf"(?<![\d.])(?!127\.0\.0\.1\b|0\.0\.0\.0\b){_OCTET}(?:\.{_OCTET}){{3}}(?![\d.])", "<address>"),
        (r"(?<![\w:])(?:[0-9a-fA-F]{1,4}:){4,7}[0-9a-fA-F]{1,4}(?![\w:.])", "<address>"),
        (r"(?i)(\bserial(?:[ _]?(?:number|no))?\"?\s*[:=]\s*\"?)[\w-]{4,}", r"\1<serial>"),
        (r"(/home/|/Users/)[^/\s\"':]+", r"\1<user>"),
    )
)


def redact(text: str, names: tuple[str, ...] | None = None) -> str:
    """The text without secrets, addresses, serial numbers and names. `names` defaults to this host and user."""
    for rule, replacement in _RULES:
        text = rule.sub(replacement, text)
    for name in own_names() if names is None else names:
        text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", "<name>", text)
    return text


def own_names() -> tuple[str, ...]:
    """Host and user name, where they are long enough not to be ordinary words of a log."""
    host = socket.gethostname()
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = ""
    candidates = (host, host.partition(".")[0], user)
    return tuple(dict.fromkeys(name for name in candidates if len(name) > 3 and name not in ("root", "localhost")))
