"""bayard calibrate: measure what this machine really does."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from daemon.commands.client import offline_or_admin
from daemon.commands.options import ConfigOption, JsonOption, RunDirOption, StateDirOption, settings_from
from daemon.planning.calibrate import DEFAULT_SECONDS

app = typer.Typer(rich_markup_mode=None)


@app.command()
def calibrate(
    seconds: Annotated[float, typer.Option(min=1, max=120, help="Time to spend, over all devices.")] = DEFAULT_SECONDS,
    device: Annotated[str | None, typer.Option(help="One device, as cpu or cuda:0; else every usable one.")] = None,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure bandwidth and matrix rates; later predictions use them. Best while nothing else computes."""
    from daemon.commands.engine_process import told_to_end
    from daemon.commands.progress import follow

    with offline_or_admin(settings_from(config, state_dir, run_dir)) as reach:
        if reach.admin is not None:
            operation = reach.admin.post("calibrations", {"seconds": seconds, "device": device})["item"]
            devices = follow(reach.admin, operation)["devices"]
        else:
            with told_to_end():
                devices = [rates.to_json() for rates in reach.parts().desk.calibrate(seconds, device)]
            reach.record("machine.calibrate", "machine", {"seconds": seconds, "device": device})
    if as_json:
        print(json.dumps(devices, indent=2))
        return
    for rates in devices:
        print("\n".join(_lines(rates)))


def _lines(rates: dict[str, Any]) -> list[str]:
    from daemon.planning.render import table

    lines = [
        f"{rates['name']} ({rates['device']}): reads {rates['read_bytes_per_s'] / 1e9:.1f} GB/s, "
        f"{rates['flops'] / 1e9:,.0f} GFLOP/s, KV {rates['kv_read_bytes_per_s'] / 1e9:.1f} GB/s, "
        f"{rates['layer_overhead_s'] * 1e6:,.0f} us a layer; {rates['detail']}"
    ]
    if links := rates.get("links"):
        told = f"  copies: {links['to_device'] / 1e9:.1f} GB/s from the host, {links['to_host'] / 1e9:.1f} back"
        lines.append(told + (f", {links['peer'] / 1e9:.1f} to its neighbour" if links["peer"] else ""))
    rows = [
        (kind, f"{1e-9 / rate['points'][0][1]:.2f}", f"{rate['flops'] / 1e9:,.0f}")
        for kind, rate in rates["kinds"].items()
    ]
    return lines + [f"  {line}" for line in table(rows, ("weights", "G weights/s, one row", "GFLOP/s, many rows"))]
