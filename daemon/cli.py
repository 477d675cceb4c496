"""The `bayard` command: a table of commands, each loaded from its own file only when it is used."""

from __future__ import annotations

import importlib
import sys
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from daemon.commands.printable import printable
from engine.errors import BayardError, InvalidParameter

# name -> what it is for. daemon/commands/<name>.py holds `app`, a typer.Typer.
COMMANDS = {
    "serve": "Run the daemon in the foreground.",
    "status": "What is running, at a glance.",
    "attention": "What needs a person, failures first.",
    "models": "Import, list, verify and delete models.",
    "operations": "Long work that was started: list and cancel.",
    "bundle": "Models in one signed file, for sites without a network.",
    "workers": "The processes that run the models: list, restart, drain, stop, wake, kill.",
    "logs": "What a worker wrote, of this start and those before.",
    "requests": "The requests that are here now; cancel one.",
    "admission": "Hold new requests back, or let them in again.",
    "plan": "What a model would need here and how fast it would be; saved plans.",
    "schedule": "Which plan runs when.",
    "quantize": "Write a checkpoint in fewer bits.",
    "quality": "What a precision costs, on a text.",
    "calibrate": "Measure what this machine really does.",
    "tenants": "Who may use the box, and how much of it.",
    "usage": "What tenants, keys and models used; export.",
    "keys": "API keys: create, list, rotate, revoke.",
    "audit": "Who changed what, and whether the log is whole.",
    "support-bundle": "One redacted archive that tells a helper what this box is and does.",
    "backup": "Save the state while the daemon runs; list and check what was saved.",
    "restore": "Put a back-up in the place of what is there.",
    "hw": "The hardware that was found.",
    "doctor": "Check that the box is sound.",
    "tls": "Certificates for HTTP, gRPC and the admin port.",
    "config": "Settings, each with its source.",
    "console": "The admin console in this terminal.",
    "demo": "Import a small model, serve it and ask it one question.",
    "version": "Version and schema of this installation.",
}


class LazyGroup(TyperGroup):
    """Imports a command's file only to run it, so that `bayard --help` and each command start fast."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        command = typer.main.get_command(importlib.import_module(f"daemon.commands.{cmd_name.replace('-', '_')}").app)
        command.name = cmd_name
        return command

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))
        formatter.write_paragraph()
        formatter.write_text("Each command explains itself: bayard COMMAND --help")


app = typer.Typer(
    cls=LazyGroup, no_args_is_help=True, add_completion=True, rich_markup_mode=None, pretty_exceptions_enable=False
)


@app.callback()
def bayard() -> None:
    """Bayard: one box in your own rooms as an LLM service."""


def main(argv: list[str] | None = None) -> NoReturn:
    """Exit status: 0 done, 1 failed, 2 wrong usage, 75 try again, 78 configuration, 130 interrupted, 143 stopped."""
    sys.exit(run(sys.argv[1:] if argv is None else argv))


def run(argv: list[str]) -> int:
    """As main, for callers that go on."""
    try:
        _require_text(argv)
        result = typer.main.get_command(app)(args=argv, prog_name="bayard", standalone_mode=False)
    except BayardError as error:
        sys.stdout.flush()
        print(f"bayard: {printable(str(error), keep=chr(10))}", file=sys.stderr)
        return error.exit_code
    except typer.Abort:
        print("bayard: stopped.", file=sys.stderr)
        return 130
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output went away, as `head` does
        sys.stderr.close()
        return 1
    except Exception as error:
        if not hasattr(error, "exit_code") or not hasattr(error, "show"):
            raise
        error.show()  # typer's own usage errors
        return int(error.exit_code)
    return result if isinstance(result, int) else 0


def _require_text(argv: list[str]) -> None:
    """Raises: InvalidParameter for bytes that are no text: no name, and nothing that JSON or the store can hold."""
    for argument in argv:
        if any("\ud800" <= char <= "\udfff" for char in argument):
            raise InvalidParameter(
                f"the argument {argument!a} is not valid UTF-8.", "Rename the file, or correct the argument."
            )


if __name__ == "__main__":
    main()
