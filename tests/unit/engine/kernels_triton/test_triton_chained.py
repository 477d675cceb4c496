"""Chained kernels, by reading their source: every program waits before it touches what a step writes or reads."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import engine.kernels

FOLDER = Path(engine.kernels.__file__).parent / "triton"
# What a kernel may use before it waits: weights, and numbers that say their shapes; what a batch says of itself; where
# the cache lies, of which nothing may be read.
BEFORE = {
    "weight", "bias", "codes", "scales", "zeros", "row_scales", "columns", "depth", "width", "nothing",
    "groups", "per_split",
    "positions", "pages", "offsets", "cos_sin", "query_starts", "context_lens", "block_tables", "num_heads", "splits",
    "view", "page_stride", "plane_stride", "head_stride", "table_stride",
}  # fmt: skip
WAIT = "if CHAINED:\n    let_next_start()\n    wait_for_last()"
LATE = "if CHAINED:\n    wait_for_last()"  # what comes after may begin later


def faults_of(kernel: ast.FunctionDef) -> list[str]:
    """What a kernel with CHAINED among its parameters does wrong."""
    waits = [i for i, statement in enumerate(kernel.body) if ast.unparse(statement) in (WAIT, LATE)]
    if len(waits) != 1:
        return ["it does not wait once, in every program"]
    before = [node for statement in kernel.body[: waits[0]] for node in ast.walk(statement)]
    given = {arg.arg for arg in kernel.args.args if arg.annotation is None}
    used = {node.id for node in before if isinstance(node, ast.Name)} & given
    found = [f"it uses {name} before it waits" for name in sorted(used - BEFORE)]
    if reads_of("view", kernel.body[: waits[0]]):
        found.append("it reads the cache before it waits")
    calls = [ast.unparse(node.func) for node in before if isinstance(node, ast.Call)]
    found += [f"it calls {name} before it waits" for name in calls if name == "tl.store" or "atomic" in name]
    if any(isinstance(node, ast.Return) for node in before):
        found.append("it may end before it waits")
    return found


def reads_of(name: str, statements: list[ast.stmt]) -> bool:
    """Whether one loads from what the name, or a number made of it, says."""
    derived = {name}

    def names(node: ast.AST) -> set[str]:
        return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}

    for node in (inner for statement in statements for inner in ast.walk(statement)):
        if isinstance(node, ast.Assign) and names(node.value) & derived:
            derived |= set().union(*map(names, node.targets))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "tl.load" and names(node) & derived:
            return True
    return False


def functions_in(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


def kernels_in(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    return {name: f for name, f in functions_in(tree).items() if any(arg.arg == "CHAINED" for arg in f.args.args)}


TREES = {path.name: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.py"))}
CHAINED = {(path, name): kernel for path, tree in TREES.items() for name, kernel in kernels_in(tree).items()}
NAMES = {name for _, name in CHAINED}


def test_there_are_chained_kernels() -> None:
    assert {"_dots_kernel", "_fp8_rows_kernel", "_gemv_kernel", "_norm_fine_kernel", "_merge_kernel"} <= NAMES


@pytest.mark.parametrize("kernel", sorted(CHAINED), ids="-".join)
def test_a_chained_kernel_waits_before_it_touches_what_steps_change(kernel: tuple[str, str]) -> None:
    assert faults_of(CHAINED[kernel]) == []


@pytest.mark.parametrize("name", sorted(TREES))
def test_kernels_are_launched_so_exactly_if_they_wait(name: str) -> None:
    for node in ast.walk(TREES[name]):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript)):
            continue
        launched = ast.unparse(node.func.value)
        spread = [ast.unparse(keyword.value) for keyword in node.keywords if keyword.arg is None]
        options = [name for name in spread if name == "options" or name.startswith("launch(")]
        chained = (name, launched) in CHAINED if launched in functions_in(TREES[name]) else launched in NAMES
        waits = chained and ast.unparse(node.args[-1]) != "False"
        assert bool(options) == waits, launched


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ("    tl.load(x)", "it does not wait once, in every program"),
        ("    if x:\n        wait_for_last()", "it does not wait once, in every program"),
        ("    tl.load(x)\n    {wait}", "it uses x before it waits"),
        ("    tl.store(weight, 1)\n    {wait}", "it calls tl.store before it waits"),
        ("    if width > 2:\n        return\n    {wait}", "it may end before it waits"),
        ("    base = view + width\n    tl.load(base)\n    {wait}", "it reads the cache before it waits"),
    ],
)
def test_a_kernel_that_does_not_wait_in_time_is_found(body: str, fault: str) -> None:
    wait = WAIT.replace("\n", "\n    ")
    source = "def kernel(x, view, weight, width, CHAINED: tl.constexpr):\n" + body.replace("{wait}", wait)
    assert faults_of(kernels_in(ast.parse(source))["kernel"]) == [fault]
