"""What the code imports is declared, and the borders between packages name every module there is."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = PROJECT["tool"]["scikit-build"]["wheel"]["packages"]
# Imported where it is there, and not needed: import name -> what asks for it.
OPTIONAL = {
    "openai": "the demo's client, of the extra `demo`",
    "grpc_tools": "makes the gRPC stubs, of the extra `test`",
    "opentelemetry": "traces, of the extra `tracing`",
    "triton": "comes with a CUDA torch",
}
# What the daemon may see of the engine; kernels see the errors and the forms in which weights are stored.
SEEN = {
    "daemon": {"client", "errors", "ggml_types", "messages", "spec", "text"},
    "engine.kernels": {"errors", "ggml_types", "kernels", "quant"},
}


def imports(folder: Path) -> Iterator[str]:
    """Top-level names of every absolute import below a folder."""
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                yield from (name.name.partition(".")[0] for name in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module.partition(".")[0]


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("package", PACKAGES)
def test_package_imports_only_declared_dependencies(package: str) -> None:
    declared = {normal(re.split(r"[^A-Za-z0-9_.-]", line)[0]) for line in PROJECT["project"]["dependencies"]}
    # fastapi is made of starlette and pins it
    declared.add("starlette")
    known = packages_distributions()
    foreign = {name for name in imports(ROOT / package) if name not in sys.stdlib_module_names}
    undeclared = {
        name
        for name in foreign - set(PACKAGES) - set(OPTIONAL)
        if not declared & {normal(distribution) for distribution in known.get(name, [name])}
    }
    assert undeclared == set()


@pytest.mark.parametrize("source", SEEN)
def test_border_names_every_module_of_the_engine_beyond_it(source: str) -> None:
    """A new module of the engine is either meant to be seen, or forbidden: never forgotten."""
    contracts = PROJECT["tool"]["importlinter"]["contracts"]
    forbidden = {name for one in contracts if one["source_modules"] == [source] for name in one["forbidden_modules"]}
    there = {
        path.stem for path in (ROOT / "engine").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    there -= {"__init__"}
    assert SEEN[source] <= there
    assert {f"engine.{name}" for name in there - SEEN[source]} <= forbidden
