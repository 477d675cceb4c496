"""Sections of the page of results about the control plane: what it adds, an hour of it, and idle connections."""

from __future__ import annotations

from typing import Any

Line = dict[str, Any]


def serve_rows(figures: Line) -> list[list[str]]:
    """What the daemon adds beside an engine that answers at once."""
    return [
        ["start until it answers", f"{figures['start_s']:.2f} s"],
        ["resident memory, idle / after the load", f"{figures['idle_rss_mb']} / {figures['loaded_rss_mb']} MB"],
        [
            f"streamed by {figures['clients']} clients",
            f"{figures['tokens_per_s']:,} tokens/s, {figures['requests_per_s']:,.0f} requests/s",
        ],
        [
            f"first token at {figures['rate_per_s']:.0f} requests/s, p50 / p99",
            f"{figures['ttft_p50_ms']:.2f} / {figures['ttft_p99_ms']:.2f} ms",
        ],
        ["streams that did not end whole", str(figures["incomplete"] + figures["paced_without_token"])],
    ]


def soak_rows(samples: list[Line], verdict: Line) -> list[list[str]]:
    """Whether memory, file descriptors and threads stayed flat; each figure least, most, at the end."""
    answered, growth = sum(verdict["counts"].values()), verdict["rss_growth_mb_per_hour"]
    workers = [sample["workers_rss_bytes"] / 1e6 for sample in samples if "workers_rss_bytes" in sample]
    return [
        ["load", f"{verdict['minutes']:.0f} min, {answered:,} requests of {len(verdict['counts'])} outcomes"],
        [
            "daemon's memory, after settling / at the end",
            f"{verdict['rss_first_mb']:.0f} / {verdict['rss_last_mb']:.0f} MB ({growth:+.1f} MB/h)",
        ],
        ["its file descriptors", _three(verdict["fds_min_max_end"])],
        ["its threads", _three(verdict["threads_min_max_end"])],
        ["workers' memory, least / most", f"{min(workers):.0f} / {max(workers):.0f} MB" if workers else "not sampled"],
        ["workers killed meanwhile", str(verdict["counts"].get("worker_kills", 0))],
        ["exit status", str(verdict["exit_status"])],
    ]


def idle_rows(runs: list[Line]) -> list[list[str]]:
    """First tokens of clients that work, beside connections that do not."""
    return [
        [
            run["run"],
            f"{run['idle']:,}",
            f"{run['ttft_p50_ms']:.1f} / {run['ttft_p99_ms']:.1f} ms",
            f"{run['without_token']} of {run['requests']}",
            f"{run['rss_bytes'] / 1e6:.0f} MB",
            "" if "evicted" not in run else f"{run['evicted']:,} made room",
        ]
        for run in runs
    ]


def _three(figures: list[int]) -> str:
    return "least {} / most {} / end {}".format(*figures)
