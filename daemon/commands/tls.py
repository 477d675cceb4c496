"""bayard tls: a certificate authority of the box's own, and what certificates are in use."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Annotated, Any

import typer

from daemon.commands.client import offline_or_admin
from daemon.commands.options import ConfigOption, JsonOption, RunDirOption, StateDirOption, settings_from

if TYPE_CHECKING:
    from daemon.tls.authority import CertificateFacts

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Certificates for HTTP, gRPC and the admin port.")
Names = Annotated[list[str] | None, typer.Option("--name", help="A host name or address that clients use; repeatable.")]


@app.command()
def init(
    name: Names = None,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make an authority and a first certificate; then set tls.enabled = true and restart."""
    from daemon.tls.authority import Authority

    settings = settings_from(config, state_dir, run_dir)
    own = Authority(settings.state_dir / "tls")
    facts = own.init(name or [socket.gethostname(), "localhost", "127.0.0.1", "::1"])
    _show(facts, as_json, f"give clients {own.ca_cert}; set tls.enabled = true and restart Bayard")


@app.command()
def rotate(
    name: Names = None,
    authority: Annotated[bool, typer.Option("--ca", help="A new authority too.")] = False,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """A new certificate; a running daemon shows it to new connections at once."""
    from daemon.tls.authority import Authority

    settings = settings_from(config, state_dir, run_dir)
    with offline_or_admin(settings) as reach:
        if reach.admin is not None:
            answer = reach.admin.post("certificates/rotate", {"names": name or [], "authority": authority})
            _show_items(answer["items"], as_json)
            return
        facts = Authority(settings.state_dir / "tls").rotate(name, authority=authority)
        after = {"fingerprint": facts.fingerprint, "until": facts.not_after_at.isoformat(), "authority": authority}
        reach.record("certificate.rotate", "certificate:server", after)
    _show(facts, as_json, "it is used from the next start on")


@app.command()
def show(
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """The certificates in use and until when."""
    from daemon.api.admin.certificates import certificate_item
    from daemon.tls.authority import Authority, facts_of

    settings = settings_from(config, state_dir, run_dir)
    with offline_or_admin(settings) as reach:
        if reach.admin is not None:
            items = reach.admin.get("certificates")["items"]
        else:
            own = Authority(settings.state_dir / "tls")
            found = [("server", own.server_cert), ("authority", own.ca_cert)]
            items = [
                certificate_item(kind, facts_of(path)).model_dump(mode="json") for kind, path in found if path.exists()
            ]
    _show_items(items, as_json)


def _show(facts: CertificateFacts, as_json: bool, then: str) -> None:
    told = {
        "path": facts.path,
        "names": list(facts.names),
        "not_after": facts.not_after_at.isoformat(),
        "fingerprint": facts.fingerprint,
    }
    if as_json:
        print(json.dumps(told, indent=2))
        return
    print(f"{facts.path} for {', '.join(facts.names)}, until {facts.not_after_at:%Y-%m-%d}")
    print(then)


def _show_items(items: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print(json.dumps(items, indent=2))
        return
    for item in items:
        names = ", ".join(item["names"]) or item["subject"]
        print(f"{item['kind']:<10} until {item['not_after'][:10]}  {names}  {item['path']}")
    if not items:
        print("there is no certificate; `bayard tls init` makes one")
