"""bayard quantize: write a checkpoint in fewer bits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from daemon.commands.options import ConfigOption, JsonOption, RunDirOption, StateDirOption, settings_from
from engine.spec.kv_scales import KvKind
from engine.spec.precision import WrittenPrecision

app = typer.Typer(rich_markup_mode=None)


@app.command()
def quantize(
    model: Annotated[str, typer.Argument(metavar="MODEL|PATH", help="An imported model, or a file or folder.")],
    to: Annotated[
        WrittenPrecision, typer.Option("--to", help="fp8, int8, int8-mixed or int4; stored: --kv alone.")
    ] = WrittenPrecision.STORED,
    kv: Annotated[
        KvKind | None, typer.Option("--kv", help="fp8 or int8: learn multipliers of such a KV cache too.")
    ] = None,
    calibrate: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="A text to learn from, its first 8,192 tokens; none: learn nothing; else a built-in one.",
        ),
    ] = "",
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder to write; else MODEL-PRECISION here.")] = None,
    device: Annotated[str, typer.Option(help="Where it computes: cpu, cuda:0, ...")] = "cpu",
    group: Annotated[
        int | None, typer.Option(help="fp8, int4: neighbours with one multiplier, 0 for a row; else 128 or what fits.")
    ] = None,
    restart: Annotated[bool, typer.Option("--restart", help="Throw away what an interrupted run has left.")] = False,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a checkpoint in fewer bits, a layer at a time; interrupted, the same command goes on where it stopped."""
    from daemon.commands.engine_process import run_module
    from daemon.commands.quality import path_of
    from daemon.planning.units import human_bytes

    path = path_of(model, settings_from(config, state_dir, run_dir))
    name = path.stem if path.is_file() else path.name
    made = "-".join(([str(to)] if to is not WrittenPrecision.STORED else []) + ([f"kv-{kv}"] if kv else []))
    folder = (out or Path(f"{name}-{made or to}")).absolute()
    words = [str(path), "--to", str(to), "--out", str(folder), "--device", device]
    words += ["--calibrate", calibrate] if calibrate else []
    words += ["--group", str(group)] if group is not None else []
    words += ["--kv", str(kv)] if kv is not None else []
    written = run_module("engine.quantize", words + (["--restart"] if restart else []))["written"]
    if as_json:
        print(json.dumps(written, indent=2))
        return
    print(f"{written['path']}: {written['source_dtype']}, {human_bytes(written['weight_bytes'])}")
    form = f"{folder}+kv-{kv}" if kv is not None else folder
    print(f"import it: `bayard models import {written['path']}`; its price: `bayard quality {model} stored {form}`")
