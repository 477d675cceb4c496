"""bayard bundle: models in one signed file, for sites without a network."""

from __future__ import annotations

import getpass
import json
import socket
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from daemon.commands.client import offline_or_admin
from daemon.commands.options import ConfigOption, JsonOption, RunDirOption, StateDirOption, settings_from
from engine.spec.place import place_of

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Models in one signed file.")


@app.command()
def keygen(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Private key to make; FILE.pub is its public half.")],
    as_json: JsonOption = False,
) -> None:
    """Make a key that signs bundles. Give FILE.pub to the sites that take them in; keep FILE to yourself."""
    from daemon.models.signing import fingerprint, make_keys, parse_public

    public = make_keys(file)
    print_ = fingerprint(parse_public(public.read_bytes(), str(public)))
    told = {"private": str(file), "public": str(public), "fingerprint": print_}
    print(json.dumps(told) if as_json else f"{public} has the fingerprint {print_}")


@app.command()
def create(
    out: Annotated[Path, typer.Argument(metavar="FILE", help="The bundle to write.")],
    models: Annotated[list[str], typer.Argument(metavar="MODEL...", help="Imported models that go into it.")],
    key: Annotated[Path, typer.Option(help="Private key that signs it.")],
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Pack imported models with their digests and licences, and sign them."""
    from daemon.commands.models import model_item
    from daemon.commands.progress import ProgressLine
    from daemon.models.bundle import PackedFile, PackedModel
    from daemon.models.bundle import create as write
    from daemon.models.signing import read_private

    private = read_private(key)
    with offline_or_admin(settings_from(config, state_dir, run_dir)) as reach:
        items: list[dict[str, Any]]
        if reach.admin is not None:
            items = [reach.admin.get(f"models/{quote(name)}")["item"] for name in models]
        else:
            parts = reach.parts()
            items = [model_item(parts.models.get(name), []) for name in models]
    packed = []
    for item in items:
        base = Path(item["path"]) if item["format"] != "gguf" else Path(item["path"]).parent
        files = [PackedFile(base / f["path"], f["path"], f["size_bytes"], f["sha256"]) for f in item["files"]]
        packed.append(PackedModel(item["name"], item["format"], item["licence"], tuple(files)))
    line = ProgressLine()
    try:
        made_by = f"{getpass.getuser()}@{socket.gethostname()}"
        print_ = write(out, packed, private, made_by, lambda p: line.show(p.stage, p.file, p.done_bytes, p.total_bytes))
    finally:
        line.clear()
    size = out.stat().st_size
    told = {"bundle": str(out), "models": [item["name"] for item in items], "size_bytes": size, "signed_by": print_}
    print(json.dumps(told) if as_json else f"{out}: {len(items)} models, {size / 2**30:.2f} GiB, signed by {print_}")


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The bundle, as the daemon's machine sees it.")],
    trust: Annotated[
        list[Path] | None,
        typer.Option(help="Public key of a maker to believe; besides state_dir/trusted-keys/*.pub. Repeatable."),
    ] = None,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check the signature, and take in what the bundle holds. A model that is here already is left alone."""
    from daemon.commands.progress import ProgressLine, follow
    from daemon.models.bundle import import_bundle
    from daemon.models.signing import parse_public, public_text, trusted_keys

    settings = settings_from(config, state_dir, run_dir)
    file = place_of(str(file)).absolute()
    pems = [public_text(path) for path in trust or []]
    with offline_or_admin(settings) as reach:
        result: dict[str, Any]
        if reach.admin is not None:
            result = follow(
                reach.admin, reach.admin.post("bundles/imports", {"path": str(file), "trust": pems})["item"]
            )
        else:
            line = ProgressLine()
            given = [parse_public(pem.encode(), "a key of --trust") for pem in pems]
            try:
                content = import_bundle(
                    reach.parts().models,
                    file,
                    given + trusted_keys(settings.state_dir / "trusted-keys"),
                    lambda p: line.show(p.stage, p.file, p.done_bytes, p.total_bytes),
                )
            finally:
                line.clear()
            reach.record("bundle.import", f"path:{file}", {"given_keys": len(given)})
            result = {
                "imported": list(content.imported),
                "already_here": list(content.already_here),
                "signed_by": content.signed_by,
            }
    if as_json:
        print(json.dumps(result, indent=2))
        return
    print(f"signed by {result['signed_by']}")
    print(f"imported: {', '.join(result['imported']) or 'nothing'}")
    if result["already_here"]:
        print(f"already here: {', '.join(result['already_here'])}")
