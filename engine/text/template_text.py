"""The literal text a chat template writes itself, found in its syntax tree."""

from __future__ import annotations

import jinja2
from jinja2 import nodes

from engine.text.template_engine import template_environment


def literal_text(template: str) -> str:
    """Every literal of template, joined by NUL; "" for a template that does not parse (rendering will say so)."""
    try:
        tree = template_environment().parse(template)
    except jinja2.TemplateSyntaxError:
        return ""
    literals = [node.data for node in tree.find_all(nodes.TemplateData)]
    literals += [node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)]
    return "\0".join(literals)
