"""Jinja2 for chat templates: sandboxed, and bounded in time and size.

A template comes with a model's files, so it is data from outside: it gets no access to Python objects, and a loop or
an expression that would run or grow without end is stopped. `BoundedTemplate.render` is the only way to run one.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import cache
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import do_indent
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

RENDER_LIMIT_S = 2.0
OUTPUT_LIMIT_CHARACTERS = 32 * 1024 * 1024
_TICK = "bayard_tick"
_JOIN = "bayard_join"
_POWER_LIMIT_BITS = 4096
_WIDE_FORMAT = re.compile(r"\d{5}|\*|:[^}]*\{")
_PADDING = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs"})


class TemplateRefused(jinja2.TemplateError):
    """The template called raise_exception: it cannot express these messages."""


class TemplateTooCostly(jinja2.TemplateError):
    """Rendering went over a limit."""


def _check_size(characters: int) -> None:
    if characters > OUTPUT_LIMIT_CHARACTERS:
        raise TemplateTooCostly(
            f"it builds a text of {characters:,} characters; the limit is {OUTPUT_LIMIT_CHARACTERS:,}"
        )


def _join(*parts: Any) -> str:
    texts = [str(part) for part in parts]
    _check_size(sum(map(len, texts)))
    return "".join(texts)


class _GenerationBlock(Extension):
    """{% generation %} marks the assistant's text for training; here its content is simply written."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _check_method(text: str, name: str, args: tuple[Any, ...]) -> None:
    """Refuse a call of a str method whose result would be over the size limit."""
    if name in _PADDING:
        _check_size(sum(arg for arg in args if isinstance(arg, int)))
    elif name in ("format", "%") and _WIDE_FORMAT.search(text):
        raise TemplateTooCostly(f"it formats with a computed or very large width: {text[:40]!r}")
    elif name == "replace" and len(args) > 1:
        _check_size(len(text) + text.count(str(args[0])) * len(str(args[1])))
    elif name == "join" and args and isinstance(args[0], list | tuple):
        _check_size(sum(len(str(part)) + len(text) for part in args[0]))


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"*", "**", "+", "%"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        whole = isinstance(left, int) and isinstance(right, int)
        if operator == "**" and whole and abs(right) * left.bit_length() > _POWER_LIMIT_BITS:
            raise TemplateTooCostly(f"it computes {left} ** {right}")
        if operator == "*":
            for sequence, times in ((left, right), (right, left)):
                if hasattr(sequence, "__len__") and isinstance(times, int):
                    _check_size(len(sequence) * max(times, 0))
        if operator == "+" and isinstance(left, str | list) and isinstance(right, str | list):
            _check_size(len(left) + len(right))
        if operator == "%" and isinstance(left, str):
            _check_method(left, "%", ())
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            _check_method(value.__self__, "format", ())
        return wrapped

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, str):
            _check_method(owner, getattr(obj, "__name__", ""), args)
        return super().call(context, obj, *args, **kwargs)


class _Bounds(NodeTransformer):
    """Puts a clock tick into every loop and macro, and a size check on every concatenation."""

    def _ticking(self, node: nodes.Node) -> nodes.Node:
        self.generic_visit(node)
        tick = nodes.ExprStmt(nodes.Call(nodes.Name(_TICK, "load"), [], [], None, None))
        node.body.insert(0, tick)  # type: ignore[attr-defined]
        return node

    visit_For = visit_Macro = visit_CallBlock = _ticking

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return nodes.Call(nodes.Name(_JOIN, "load"), node.nodes, [], None, None)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: object) -> NoReturn:
    raise TemplateRefused(str(message))


def _replace(value: object, old: object, new: object, count: int | None = None) -> str:
    _check_method(str(value), "replace", (old, new))
    return str(value).replace(str(old), str(new), -1 if count is None else count)


def _center(value: object, width: int = 80) -> str:
    _check_size(width)
    return str(value).center(width)


def _format(value: object, *args: Any, **kwargs: Any) -> str:
    _check_method(str(value), "%", ())
    return str(value) % (kwargs or args)


def _indent(value: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    _check_size(len(value) + (value.count("\n") + 1) * (width if isinstance(width, int) else len(width)))
    return do_indent(value, width, first, blank)


@cache
def template_environment() -> ImmutableSandboxedEnvironment:
    environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols])
    environment.filters.update(tojson=_to_json, replace=_replace, center=_center, format=_format, indent=_indent)
    environment.globals.update(raise_exception=_refuse, strftime_now=_strftime_now)
    environment.globals[_JOIN] = _join
    del environment.globals["lipsum"]
    return environment


def _strftime_now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)


class BoundedTemplate:
    """One compiled chat template. Safe to render from several threads.

    Raises: jinja2.TemplateSyntaxError when the source does not parse
    """

    def __init__(self, source: str) -> None:
        environment = template_environment()
        tree: nodes.Template = _Bounds().visit(environment.parse(source))
        tree.set_environment(environment)
        code = environment.compile(tree, "chat_template", "chat_template")
        self._template = jinja2.Template.from_code(environment, code, environment.make_globals(None))

    def render(self, variables: Mapping[str, Any]) -> str:
        """The template's text.

        Raises: whatever the template's code raises; TemplateTooCostly over a limit
        """
        ends_mono = time.monotonic() + RENDER_LIMIT_S

        def tick() -> None:
            if time.monotonic() > ends_mono:
                raise TemplateTooCostly(f"it runs for more than {RENDER_LIMIT_S:g} s")

        return "".join(_measured(self._template.generate({**variables, _TICK: tick}), tick))


def _measured(pieces: Iterator[str], tick: Callable[[], None]) -> Iterator[str]:
    characters = 0
    for piece in pieces:
        characters += len(piece)
        _check_size(characters)
        tick()
        yield piece
