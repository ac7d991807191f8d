"""What to do about a fault: a sentence, and in it the commands and edits that a reader copies."""

from __future__ import annotations

from dataclasses import dataclass

from allpull.schema.explained import Place, RemedyLine


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """What to do, empty where there is nothing.

    ``options``: the keys of a specification and variables of the environment that ``text`` names. ``lines``: the parts
    of ``text`` to copy.
    """

    text: str = ""
    options: tuple[str, ...] = ()
    lines: tuple[RemedyLine, ...] = ()

    def __bool__(self) -> bool:
        """Whether there is something to do."""
        return bool(self.text)


def shell(line: str) -> Action:
    """A command of its own."""
    return _line("shell", line)


def starter(line: str, *options: str) -> Action:
    """Words of the command that starts the ranks, or of its job."""
    return _line("starter", line, *options)


def environment(line: str, *options: str) -> Action:
    """A variable, before the ranks start."""
    return _line("environment", line, *options)


def program(line: str) -> Action:
    """A line of the program."""
    return _line("program", line)


def sentence(*parts: str | Action) -> Action:
    """``parts`` one after the other.

    >>> both = sentence("check ", shell("findmnt"), " and ", shell("iostat -x 1"))
    >>> both.text, [one.line for one in both.lines]
    ('check findmnt and iostat -x 1', ['findmnt', 'iostat -x 1'])
    """
    actions = [Action(text=one) if isinstance(one, str) else one for one in parts]
    return Action(
        text="".join(one.text for one in actions),
        options=tuple(dict.fromkeys(option for one in actions for option in one.options)),
        lines=tuple(dict.fromkeys(line for one in actions for line in one.lines)),
    )


def joined(separator: str, *actions: Action) -> Action:
    """``actions`` that are not empty, with ``separator`` between them."""
    parts = [part for one in actions if one for part in (separator, one)]
    return sentence(*parts[1:])


def within(before: str, action: Action, after: str = "") -> Action:
    """``action`` between ``before`` and ``after``; empty where there is nothing to do."""
    return sentence(before, action, after) if action else Action()


def _line(place: Place, line: str, *options: str) -> Action:
    return Action(text=line, options=options, lines=(RemedyLine(place=place, line=line),))
