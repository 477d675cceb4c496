"""bayard quality: what a precision costs, on a text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from daemon.commands.client import offline_or_admin
from daemon.commands.options import ConfigOption, JsonOption, RunDirOption, StateDirOption, settings_from
from daemon.settings import Settings
from engine.errors import BayardError, InvalidParameter
from engine.spec.place import is_there, place_of
from engine.spec.precision import Activations

app = typer.Typer(rich_markup_mode=None)

FormArgument = Annotated[
    str,
    typer.Argument(
        help="stored, fp8, int8, int8-mixed, int4, fp4, or the path of another checkpoint of it; +kv-fp8 or +kv-int8 "
        "behind it, and -dynamic or -calibrated if it matters, is what the KV cache is kept in."
    ),
]


@app.command()
def quality(
    model: Annotated[str, typer.Argument(metavar="MODEL|PATH", help="An imported model, or a file or folder.")],
    first: FormArgument,
    second: FormArgument,
    text: Annotated[Path | None, typer.Option(metavar="FILE", help="Text to measure on; else a built-in one.")] = None,
    tokens: Annotated[int, typer.Option(min=2, help="How many tokens of it at most.")] = 2048,
    device: Annotated[str, typer.Option(help="Where it computes: cpu, cuda:0, ...")] = "cpu",
    activation: Annotated[
        Activations, typer.Option(help="exact, or int8 or fp8 where kernels may round activations.")
    ] = Activations.EXACT,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Perplexity, token agreement and divergence of two forms; kept for an imported model, so that plans show it."""
    from daemon.commands.engine_process import run_module
    from daemon.planning.quality import quality_line

    settings = settings_from(config, state_dir, run_dir)
    words = [str(path_of(model, settings)), "--first", first, "--second", second, "--tokens", str(tokens)]
    words += ["--device", device, "--activation", str(activation)]
    words += ["--text", str(text)] if text is not None else []
    found = run_module("engine.quantize.quality", words, progress_on_stderr=True)
    if not as_json:
        print(quality_line(found))
        print(f"perplexity {found['first_perplexity']:.3f} and {found['second_perplexity']:.3f}", flush=True)
    kept = False
    try:
        kept = _keep(model, found, settings)
    except BayardError as error:
        error.message = f"the figures are above, but were not kept for {model}: {error.message}"
        raise
    finally:  # however keeping ended: to measure took long
        if as_json:
            print(json.dumps(found | {"kept": kept}, indent=2), flush=True)
    if kept and not as_json:
        print(f"`bayard plan {model}` shows it")


def path_of(model: str, settings: Settings) -> Path:
    """Where an imported model, or a path, lies. Raises: ModelNotFound"""
    if not model:
        raise InvalidParameter("the model's name is empty.", "Name an imported model, a file or a folder.")
    path = place_of(model)
    if is_there(path):
        return path.absolute()
    with offline_or_admin(settings) as reach:
        if reach.admin is not None:
            return Path(reach.admin.get(f"models/{quote(model)}")["item"]["path"])
        return Path(reach.parts().models.get(model).path)


def _keep(model: str, found: dict[str, object], settings: Settings) -> bool:
    """Whether it was kept: of a path nothing is."""
    if is_there(place_of(model)):
        return False
    with offline_or_admin(settings) as reach:
        if reach.admin is not None:
            reach.admin.put(f"models/{quote(model)}/quality", found)
        else:
            reach.parts().desk.save_quality(model, found)
            reach.record("model.quality", f"model:{model}", {"first": found["first"], "second": found["second"]})
    return True
