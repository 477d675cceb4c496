"""bayard models: import, list, show, verify, delete."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from daemon.commands.client import TIMEOUT_S, offline_or_admin
from daemon.commands.options import ConfigOption, JsonOption, RunDirOption, StateDirOption, settings_from
from engine.spec.place import place_of

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Import, list, verify and delete models.")

AliasArgument = Annotated[str, typer.Argument(metavar="ALIAS", help="The other name.")]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of an imported model.")]


@app.callback()
def group() -> None:
    """Import, list, verify and delete models."""


@app.command("import")
def import_(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="A .gguf file, a Hugging Face folder, or a LoRA folder of PEFT.")
    ],
    name: Annotated[str | None, typer.Option(help="What clients call it; else made from the file's name.")] = None,
    link: Annotated[bool, typer.Option("--link", help="Use the files where they lie instead of copying them.")] = False,
    base: Annotated[str | None, typer.Option(help="Of a LoRA adapter: the imported model that it runs on.")] = None,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check, hash and take in a model; it is given its place in the automatic plans."""
    from daemon.commands.progress import ProgressLine, follow
    from daemon.models.intake import import_any

    path = place_of(str(path)).absolute()
    body = {"path": str(path), "name": name, "link": link, "base": base}
    with offline_or_admin(settings_from(config, state_dir, run_dir)) as reach:
        if reach.admin is not None:
            result = follow(reach.admin, reach.admin.post("imports", body)["item"])
            item = reach.admin.get(f"models/{quote(result['model'])}")["item"]
        else:
            parts = reach.parts()
            line = ProgressLine()
            try:
                record = import_any(
                    parts.models,
                    path,
                    name,
                    link,
                    lambda p: line.show(p.stage, p.file, p.done_bytes, p.total_bytes),
                    base=base,
                )
            finally:
                line.clear()
            reach.record("model.import", f"path:{path}", body)
            item = model_item(record, parts.plans.using(record.name))
    if as_json:
        print(json.dumps(item, indent=2))
        return
    print(f"imported {item['name']}: {_summary(item)}")
    plans = ", ".join(item["plans"])
    print(f"in the plans: {plans}" if plans else f"no automatic plan has room for it: `bayard plan {item['name']}`")


@app.command("list")
def list_(
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Every imported model."""
    from daemon.planning.render import table
    from daemon.planning.units import human_bytes, human_tokens

    with offline_or_admin(settings_from(config, state_dir, run_dir)) as reach:
        if reach.admin is not None:
            items = reach.admin.get("models")["items"]
        else:
            parts = reach.parts()
            plans = parts.plans.all()
            items = [
                model_item(record, [plan.name for plan in plans if record.name in plan.names])
                for record in parts.models.all()
            ]
    if as_json:
        print(json.dumps(items, indent=2))
        return
    if not items:
        print("no model is imported: `bayard models import PATH`")
        return
    rows = [
        (
            item["name"],
            "serving" if item["served"] else item["state"],
            item["architecture"],
            item["source_dtype"],
            human_bytes(item["weight_bytes"]),
            human_tokens(item["max_context_tokens"]),
            ", ".join(item["plans"]) or "-",
        )
        for item in items
    ]
    print("\n".join(table(rows, ("name", "state", "family", "weights", "size", "context", "plans"))))


@app.command()
def show(
    name: NameArgument,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """One model with its files and their digests."""
    with offline_or_admin(settings_from(config, state_dir, run_dir)) as reach:
        if reach.admin is not None:
            item = reach.admin.get(f"models/{quote(name)}")["item"]
        else:
            parts = reach.parts()
            item = model_item(parts.models.get(name), parts.plans.using(name))
    if as_json:
        print(json.dumps(item, indent=2))
        return
    print(f"{item['name']}: {_summary(item)}")
    for key in ("state", "path", "imported_at", "verified_at"):
        print(f"  {key:<12} {item[key] if item[key] is not None else 'never'}")
    print(f"  {'kept':<12} {'linked in place' if item['linked'] else 'copied'}")
    print(f"  {'plans':<12} {', '.join(item['plans']) or 'none'}")
    if item["licence"]:
        print(f"  {'licence':<12} {item['licence'].strip().splitlines()[0][:80]}")
    for file in item["files"]:
        print(f"  {file['sha256']}  {file['size_bytes']:>14,}  {file['path']}")


@app.command()
def verify(
    name: NameArgument,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Hash a model's files again and compare; exit status 1 if one is not as it was imported."""
    from daemon.commands.progress import ProgressLine, follow

    with offline_or_admin(settings_from(config, state_dir, run_dir)) as reach:
        if reach.admin is not None:
            result = follow(reach.admin, reach.admin.post(f"models/{quote(name)}/verify")["item"])
        else:
            line = ProgressLine()
            try:
                record, problems = reach.parts().models.verify(
                    name, lambda p: line.show(p.stage, p.file, p.done_bytes, p.total_bytes)
                )
            finally:
                line.clear()
            reach.record("model.verify", f"model:{name}")
            result = {"model": name, "state": record.state.value, "problems": problems}
    if as_json:
        print(json.dumps(result, indent=2))
    elif not result["problems"]:
        print(f"{name}: every file is as it was imported")
    for problem in result["problems"] if not as_json else ():
        print(f"{name}: {problem}")
    if result["problems"]:
        raise typer.Exit(1)


@app.command()
def delete(
    name: NameArgument,
    unload: Annotated[
        bool, typer.Option("--unload", help="Take it out of the automatic plans and drain its worker first.")
    ] = False,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Forget a model and remove its copy; refused while a plan or a worker uses it. Linked files stay."""
    settings = settings_from(config, state_dir, run_dir)
    with offline_or_admin(settings) as reach:
        if reach.admin is not None:
            grace_s = settings.workers.stop_grace_s if unload else 0.0
            if unload:
                print(f"waiting for what runs on {name}, at most {grace_s:.0f} s", file=sys.stderr)
            reach.admin.delete(f"models/{quote(name)}", within_s=grace_s + TIMEOUT_S, unload="true" if unload else None)
        else:
            parts = reach.parts()
            if unload:
                parts.desk.withdraw(name)
            parts.models.delete(name)
            reach.record("model.delete", f"model:{name}", {"unload": unload})
    print(json.dumps({"deleted": name}) if as_json else f"deleted {name}")


@app.command()
def alias(
    alias: AliasArgument,
    name: NameArgument,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let requests for ALIAS go to a model from now on."""
    with offline_or_admin(settings_from(config, state_dir, run_dir)) as reach:
        if reach.admin is not None:
            before = reach.admin.put(f"aliases/{quote(alias)}", {"model": name})["before"]
        else:
            before = reach.parts().aliases.set(alias, name)
            reach.record("alias.set", f"alias:{alias}", {"model": name, "before": before})
    told = f"{alias} now means {name}" + (f"; before, {before}" if before and before != name else "")
    print(json.dumps({"alias": alias, "model": name, "before": before}) if as_json else told)


@app.command()
def unalias(
    alias: AliasArgument,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Forget an alias; the model stays."""
    with offline_or_admin(settings_from(config, state_dir, run_dir)) as reach:
        if reach.admin is not None:
            before = reach.admin.delete(f"aliases/{quote(alias)}")["before"]
        else:
            before = reach.parts().aliases.remove(alias)
            reach.record("alias.remove", f"alias:{alias}", {"before": before})
    print(json.dumps({"removed": alias, "before": before}) if as_json else f"{alias} no longer means {before}")


@app.command()
def aliases(
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Every alias and what it means."""
    with offline_or_admin(settings_from(config, state_dir, run_dir)) as reach:
        if reach.admin is not None:
            found = {item["alias"]: item["model"] for item in reach.admin.get("aliases")["items"]}
        else:
            found = reach.parts().aliases.all()
    if as_json:
        print(json.dumps(found, indent=2, sort_keys=True))
    else:
        print("\n".join(f"{other}  ->  {model}" for other, model in sorted(found.items())) or "there is no alias")


def model_item(record: Any, plans: list[str]) -> dict[str, Any]:
    """A record as the admin API shows it; without a daemon nothing is served."""
    return {
        "name": record.name,
        "state": record.state.value,
        "format": record.format,
        "architecture": record.architecture,
        "path": record.path,
        "linked": record.linked,
        "weight_bytes": record.weight_bytes,
        "num_parameters": record.num_parameters,
        "max_context_tokens": record.max_context_tokens,
        "source_dtype": record.source_dtype,
        "licence": record.licence,
        "imported_at": record.imported_at.isoformat(),
        "verified_at": None if record.verified_at is None else record.verified_at.isoformat(),
        "served": False,
        "plans": plans,
        "files": [{"path": f.path, "size_bytes": f.size_bytes, "sha256": f.sha256} for f in record.files],
        "base": record.base,
    }


def _summary(item: dict[str, Any]) -> str:
    from daemon.planning.units import human_bytes, human_tokens

    kind = f"adapter of {item['base']}" if item["base"] else item["architecture"]
    return (
        f"{kind}, {item['num_parameters'] / 1e6:,.0f} M parameters in {item['source_dtype']}, "
        f"{human_bytes(item['weight_bytes'])}, context {human_tokens(item['max_context_tokens'])}"
    )
