"""OutputItems: a generation's events as output items, and as the events that tell a stream of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from daemon.api.openai.reply import chat_logprobs
from daemon.serving.events import LogprobEntry, ReasoningDelta, TextDelta, ToolCallDelta

Told = dict[str, Any]  # an event of the stream, without its sequence number


@dataclass(frozen=True, slots=True)
class _Form:
    """How an item of text is written: its fields and the names of its events."""

    prefix: str
    fields: tuple[str, ...]  # lists that are empty at first
    part: str  # the type of its one part
    holds: str  # which of the lists the part is in
    index: str  # what events call the part's number
    part_event: str
    text_event: str


_MESSAGE = _Form("msg", ("content",), "output_text", "content", "content_index", "content_part", "output_text")
_REASONING = _Form(
    "rs", ("summary", "content"), "reasoning_text", "content", "content_index", "content_part", "reasoning_text"
)
_SUMMARY = _Form(
    "rs", ("summary",), "summary_text", "summary", "summary_index", "reasoning_summary_part", "reasoning_summary_text"
)


class OutputItems:
    """Items follow one another; a new kind of event closes the one that is open. Mutable. Owner: one answer."""

    def __init__(self, answer_hex: str, *, summary: bool = False) -> None:
        """summary: thinking is told where clients look for a summary of it."""
        self.items: list[dict[str, Any]] = []
        self._hex = answer_hex
        self._forms = {"message": _MESSAGE, "reasoning": _SUMMARY if summary else _REASONING}
        self._open: str | None = None  # the kind of the last item, while more may come of it
        self._pieces: list[str] = []  # of the open item's text
        self._logprobs: list[dict[str, Any]] = []

    def text(self, delta: TextDelta) -> list[Told]:
        told = self._begin("message")
        self._pieces.append(delta.text)
        logprobs = _logprobs(delta.logprobs or ())
        self._logprobs += logprobs
        if not delta.text and not logprobs:
            return told
        return [
            *told,
            self._of_item("response.output_text.delta", content_index=0, delta=delta.text, logprobs=logprobs),
        ]

    def reasoning(self, delta: ReasoningDelta) -> list[Told]:
        told = self._begin("reasoning")
        self._pieces.append(delta.text)
        form = self._forms["reasoning"]
        return [*told, self._of_item(f"response.{form.text_event}.delta", **{form.index: 0}, delta=delta.text)]

    def call(self, delta: ToolCallDelta) -> list[Told]:
        told: list[Told] = []
        if delta.call_id is not None:
            told += self.close("completed")
            self.items.append(
                {
                    "id": self._id("fc"),
                    "type": "function_call",
                    "status": "in_progress",
                    "call_id": delta.call_id,
                    "name": delta.name,
                    "arguments": "",
                }
            )
            told.append(self._item_event("response.output_item.added"))
            self._open = "function_call"
        self._pieces.append(delta.arguments)
        return [*told, self._of_item("response.function_call_arguments.delta", delta=delta.arguments)]

    def ensure_message(self) -> list[Told]:
        """An answer without anything in it is an empty message."""
        return [] if self.items else self._begin("message")

    def close(self, status: str) -> list[Told]:
        """End the item that is open, if one is. status: completed, incomplete"""
        kind, self._open = self._open, None
        if kind is None:
            return []
        item, text = self.items[-1], "".join(self._pieces)
        told: list[Told] = []
        if kind == "function_call":
            item["arguments"] = text
            told.append(self._of_item("response.function_call_arguments.done", arguments=text, name=item["name"]))
        else:
            form, part = self._forms[kind], self._part(kind, text)
            item[form.holds] = [part]
            extra = {"logprobs": self._logprobs} if kind == "message" else {}
            at = {form.index: 0}
            told.append(self._of_item(f"response.{form.text_event}.done", **at, text=text, **extra))
            told.append(self._of_item(f"response.{form.part_event}.done", **at, part=part))
        item["status"] = status
        self._pieces, self._logprobs = [], []
        return [*told, self._item_event("response.output_item.done")]

    def _begin(self, kind: str) -> list[Told]:
        if self._open == kind:
            return []
        told = self.close("completed")
        form = self._forms[kind]
        item: Told = {"id": self._id(form.prefix), "type": kind, "status": "in_progress"}
        if kind == "message":
            item["role"] = "assistant"
        item |= {name: [] for name in form.fields}
        self.items.append(item)
        told.append(self._item_event("response.output_item.added"))
        self._open = kind
        part = self._part(kind, "")
        told.append(self._of_item(f"response.{form.part_event}.added", **{form.index: 0}, part=part))
        return told

    def _part(self, kind: str, text: str) -> dict[str, Any]:
        part: dict[str, Any] = {"type": self._forms[kind].part, "text": text}
        return part | {"annotations": [], "logprobs": self._logprobs} if kind == "message" else part

    def _id(self, prefix: str) -> str:
        """Holds the answer's own id, so that a later request can name the item."""
        return f"{prefix}_{self._hex}{len(self.items):02x}"

    def _item_event(self, kind: str) -> Told:
        return {"type": kind, "output_index": len(self.items) - 1, "item": dict(self.items[-1])}

    def _of_item(self, kind: str, **facts: Any) -> Told:
        return {"type": kind, "item_id": self.items[-1]["id"], "output_index": len(self.items) - 1, **facts}


def _logprobs(entries: tuple[LogprobEntry, ...]) -> list[dict[str, Any]]:
    content: list[dict[str, Any]] = chat_logprobs(entries)["content"]
    return content
