"""Host lists as Slurm writes them: ``node[01-03,7],gpu-[1-2]-ib,x`` and back.

``python -m allpull.launch.hostlist LIST [--first]`` prints the names, one per line: job scripts use it, because
``scontrol`` is missing inside containers. Standard library only.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from itertools import product

from allpull.errors import BadInput

MAX_NAMES = 65_536  # more hosts than any machine has; a slip such as n[1-999999999] must not fill the memory
MAX_TEXT = 1 << 20
HINT = "write it as Slurm does: node[01-04,7],other"

_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", re.ASCII)
_NUMBERED = re.compile(r"(.*?)([0-9]{1,18})", re.DOTALL)


def expand(text: str) -> list[str]:
    """The names of a host list, in its order; a name may have several brackets, of which the last runs fastest.

    >>> expand("node[01-03,7],gpu-[1-2]-ib,x")
    ['node01', 'node02', 'node03', 'node7', 'gpu-1-ib', 'gpu-2-ib', 'x']
    >>> expand("r[1-2]n[1-2]")
    ['r1n1', 'r1n2', 'r2n1', 'r2n2']

    Raises:
        BadInput: it does not parse, or names more than 65,536 hosts.
    """
    if len(text) > MAX_TEXT:
        raise BadInput(f"a host list of {len(text):,} characters; at most {MAX_TEXT:,} are read", hint=HINT)
    names: list[str] = []
    for word in _entries(text):
        literals, choices = _parts(word, text, MAX_NAMES - len(names))
        for numbers in product(*choices):
            middle = "".join(number + literal for number, literal in zip(numbers, literals[1:], strict=True))
            names.append(literals[0] + middle)
    return names


def compress(names: Sequence[str]) -> str:
    """A host list of ``names`` in their order: neighbours that count up at their end share a bracket.

    Slurm reads it too, which knows brackets at the end of a name only.

    >>> compress(["n08", "n09", "n10", "n12", "login"])
    'n[08-10,12],login'

    Raises:
        BadInput: a name that no host list can hold: empty, or with a comma, bracket or white space in it.
    """
    groups: list[tuple[str, list[str]]] = []
    for name in names:
        if not name or re.search(r"[\[\],\s]", name):
            raise BadInput(f"{name!r} is no host name", hint="names have no commas, brackets or white space")
        match = _NUMBERED.fullmatch(name)
        word, number = match.groups() if match else (name, "")
        if number and groups and groups[-1][0] == word and groups[-1][1][0]:
            groups[-1][1].append(number)
        else:
            groups.append((word, [number]))
    return ",".join(
        f"{word}[{','.join(_runs(numbers))}]" if len(numbers) > 1 else f"{word}{numbers[0]}" for word, numbers in groups
    )


def _entries(text: str) -> Iterator[str]:
    """The entries between commas outside brackets."""
    start = depth = 0
    for place, character in enumerate(text):
        depth += (character == "[") - (character == "]")
        if depth not in (0, 1):
            raise _fault(text, "brackets within brackets" if depth > 1 else "a ']' without its '['")
        if character == "," and depth == 0:
            yield text[start:place].strip()
            start = place + 1
    if depth:
        raise _fault(text, "a '[' without its ']'")
    if text.strip():
        yield text[start:].strip()


def _parts(word: str, text: str, limit: int) -> tuple[list[str], list[list[str]]]:
    """Literal parts of a word and, between each two of them, the numbers of a bracket; at most ``limit`` names."""
    pieces = re.split(r"\[([^\]]*)\]", word)
    literals = pieces[::2]
    if not "".join(literals) or any(re.search(r"\s", literal) for literal in literals):
        raise _fault(text, "a host without a name" if not "".join(literals) else f"white space in '{_short(word)}'")
    choices = []
    for inner in pieces[1::2]:
        choices.append(_numbers(inner, text))
        limit //= len(choices[-1])
        if limit == 0:
            raise _fault(text, f"names more than {MAX_NAMES:,} hosts")
    return literals, choices


def _numbers(inner: str, text: str) -> list[str]:
    """The numbers of one bracket; each is as wide as the lower end of its range."""
    numbers: list[str] = []
    for item in inner.split(","):
        match = _RANGE.fullmatch(item)
        if match is None:
            raise _fault(text, f"'{_short(item)}' is no number or range")
        low, high = match.group(1), match.group(2) or match.group(1)
        if int(high) < int(low):
            raise _fault(text, f"the range {item} runs backwards")
        if len(numbers) + int(high) - int(low) >= MAX_NAMES:
            raise _fault(text, f"names more than {MAX_NAMES:,} hosts")
        numbers += [f"{number:0{len(low)}d}" for number in range(int(low), int(high) + 1)]
    return numbers


def _runs(numbers: Sequence[str]) -> Iterator[str]:
    """Ranges of equally wide numbers that count up."""
    first = last = numbers[0]
    for number in [*numbers[1:], ""]:
        # 9 is followed by 10 where nothing is padded, and 09 is followed by 10 where both are two wide
        if number and int(number) == int(last) + 1 and number == f"{int(number):0{len(first)}d}":
            last = number
            continue
        yield first if first == last else f"{first}-{last}"
        first = last = number


def _short(text: str) -> str:
    shown = text if text.isprintable() else repr(text)[1:-1]
    return shown if len(shown) <= 80 else f"{shown[:80]}…"


def _fault(text: str, fault: str) -> BadInput:
    return BadInput(f"host list '{_short(text)}': {fault}", hint=HINT)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the names of a host list; the exit code is 2 where it is none."""
    parser = argparse.ArgumentParser(
        prog="python -m allpull.launch.hostlist", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("list", help="such as node[01-03,7]")
    parser.add_argument("--first", action="store_true", help="print the first name only")
    options = parser.parse_args(arguments)
    try:
        names = expand(options.list)
    except BadInput as error:
        sys.stderr.write(f"{error.message}\nhint: {error.hint}\n")
        return 2
    if not names:
        sys.stderr.write("the host list is empty\n")
        return 2
    sys.stdout.writelines(f"{name}\n" for name in (names[:1] if options.first else names))
    return 0


if __name__ == "__main__":
    sys.exit(main())
