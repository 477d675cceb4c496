"""response_format and its relatives: what the answer must match, read into a Constraint."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from daemon.api.json_guard import check_json
from daemon.api.openai.sampling_fields import SamplingFields
from daemon.api.schema_guard import choice_grammar, lark_grammar, regex_grammar, schema_grammar
from daemon.serving.request import Constraint
from engine.errors import InvalidParameter
from engine.messages import Grammar, GrammarKind

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class JsonSchemaField(msgspec.Struct, frozen=True):
    """strict makes no difference: the answer always matches the schema."""

    name: str
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, frozen=True):
    type: str
    json_schema: JsonSchemaField | None = None


class GuidedFields(SamplingFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Constraints beyond OpenAI's own; the names are those that other open servers use."""

    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None  # llguidance's dialect of Lark


def read_constraint(form: ResponseFormat | None, guided: GuidedFields) -> Constraint | None:
    """Raises: InvalidParameter naming the field"""
    asked = [made for made in (_read_format(form), *_read_guided(guided)) if made is not None]
    if len(asked) > 1:
        raise InvalidParameter(
            f"Both {asked[0].param} and {asked[1].param} say what the answer must match.",
            "Send one of them.",
            param=asked[1].param,
        )
    return asked[0] if asked else None


def named_schema(name: str, schema: dict[str, Any] | None, param: str) -> Constraint:
    """Raises: InvalidParameter naming param"""
    if not _NAME.fullmatch(name):
        raise InvalidParameter(
            f"The schema is named {name[:64]!r}; a name has 1 to 64 letters, digits, dots, dashes and underscores.",
            param=param,
        )
    if schema is None:
        raise InvalidParameter(f"{param} holds no schema.", param=param)
    return Constraint(schema_grammar(schema, param), param)


def json_object(param: str) -> Constraint:
    return Constraint(Grammar(GrammarKind.JSON_OBJECT), param)


def _read_format(form: ResponseFormat | None) -> Constraint | None:
    param = "response_format"
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return json_object(param)
    if form.type == "json_schema":
        if form.json_schema is None:
            raise InvalidParameter("response_format is of type json_schema without json_schema.", param=param)
        return named_schema(form.json_schema.name, form.json_schema.schema, param)
    raise InvalidParameter(
        f"response_format is of type {form.type[:32]!r}; use text, json_object or json_schema.", param=param
    )


def _read_guided(guided: GuidedFields) -> list[Constraint | None]:
    return [
        None if guided.guided_json is None else _guided_json(guided.guided_json),
        None
        if guided.guided_regex is None
        else Constraint(regex_grammar(guided.guided_regex, "guided_regex"), "guided_regex"),
        None
        if guided.guided_choice is None
        else Constraint(choice_grammar(guided.guided_choice, "guided_choice"), "guided_choice"),
        None
        if guided.guided_grammar is None
        else Constraint(lark_grammar(guided.guided_grammar, "guided_grammar"), "guided_grammar"),
    ]


def _guided_json(schema: dict[str, Any] | str) -> Constraint:
    if isinstance(schema, str):
        try:
            check_json(schema.encode())  # its own nesting was no part of the body's
            schema = msgspec.json.decode(schema)
        except (msgspec.DecodeError, InvalidParameter) as error:
            raise InvalidParameter(f"guided_json is no JSON that is taken: {error}", param="guided_json") from None
    return Constraint(schema_grammar(schema, "guided_json"), "guided_json")
