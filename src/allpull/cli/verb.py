"""How the help of a verb reads: arguments by their names, without Python's types, and an example below the options."""

from __future__ import annotations

import sys
from typing import Any

from typer.core import TyperCommand, TyperGroup

from allpull.cli.encoding import in_encoding


class Verb(TyperCommand):
    """A command whose usage line and help show each argument as the documentation does."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        for parameter in self.params:
            if parameter.param_type_name == "argument":
                vars(parameter)["display_type_rich"] = _no_type  # else `RUN… <list[Path]>`

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The words of the usage line after the verb: optional arguments in brackets."""
        arguments = [one for one in self.get_params(ctx) if one.param_type_name == "argument"]
        names = [str(one.metavar or one.name.upper()) for one in arguments]
        return [
            "[OPTIONS]",
            *(name if one.required else f"[{name}]" for one, name in zip(arguments, names, strict=True)),
        ]

    def get_help(self, ctx: Any) -> str:
        """The help in what stdout can encode: to an ASCII stdout, click would write UTF-8."""
        return in_encoding(super().get_help(ctx), sys.stdout.encoding or "utf-8")


class VerbGroup(TyperGroup):
    """Verbs below a verb."""

    def get_help(self, ctx: Any) -> str:
        """The help, as that of a verb."""
        return in_encoding(super().get_help(ctx), sys.stdout.encoding or "utf-8")


def _no_type(**_: object) -> None:
    return None


def example(command: str) -> str:
    """The last paragraph of a verb's help; the first line keeps it from being wrapped."""
    return f"\b\nExample:\n  {command}"
