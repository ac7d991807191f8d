"""Lay ``--fit-here`` and ``--set`` over a study file, and say what that changed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from allpull.config.load import parse_value
from allpull.config.typed import show, show_text
from allpull.schema.studied import Changed

TABLES = ("study", "run", "axes", "zip", "include", "exclude", "published", "fit_here", "tune")
SOURCES = ("recipe", "command", "cluster", "cluster_table")
"""What ``[run]`` may start; exactly one of them."""

MAX_SHOWN = 400  # characters of a path in a message

_KEY = re.compile(r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+){0,15}")


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``over`` laid over ``base``: tables merge, everything else is replaced; what is run replaces what was."""
    result = dict(base)
    if any(name in over for name in SOURCES):
        result = {name: value for name, value in base.items() if name not in SOURCES}
    for name, value in over.items():
        both = isinstance(value, dict) and isinstance(result.get(name), dict)
        result[name] = merged(result[name], value) if both else value
    return result


def changes(full: Mapping[str, Any], here: Mapping[str, Any], path: str = "") -> list[Changed]:
    """Every setting that differs between ``full`` and ``here``, by its path; notes are no settings."""
    differing: list[Changed] = []
    for name in dict.fromkeys([*full, *here]):
        one, other, where = full.get(name), here.get(name), f"{path}{name}"
        if isinstance(one, dict) and isinstance(other, dict):
            differing += changes(one, other, f"{where}.")
        elif one != other and where != "study.notes":
            differing.append(Changed(what=where, full=shown(one), here=shown(other)))
    return differing


def shown(value: object) -> str:
    """A value of a study file for people, on one line.

    >>> shown([1, 2]), shown(None), shown({"link": "1 Gbit/s"})
    ('1, 2', 'not set', 'link = 1 Gbit/s')
    """
    if value is None:
        return "not set"
    if isinstance(value, dict):
        return ", ".join(f"{name} = {shown(item)}" for name, item in value.items())
    if isinstance(value, list):
        return (
            "; ".join(map(shown, value))
            if any(isinstance(item, dict) for item in value)
            else ", ".join(map(shown, value))
        )
    return show_text(value, MAX_SHOWN) if isinstance(value, str) else show(value)


def override(plain: dict[str, Any], text: str, faults: list[str]) -> None:
    """Apply one override to ``plain``, or add the fault in it."""
    key, equals, raw = text.partition("=")
    path = key.strip().split(".")
    if not equals or not _KEY.fullmatch(key.strip()):
        faults.append(f"--set {show_text(text)}: write it as table.option=value, such as study.repeats=3")
    elif path[0] in TABLES:
        table: Any = plain
        for name in path[:-1]:
            table = table.setdefault(name, {}) if isinstance(table, dict) else None
        if isinstance(table, dict):
            table[path[-1]] = parse_value(raw.strip())
        else:
            faults.append(f"--set {show_text(text)}: {'.'.join(path[:-1])} is no table here")
    else:
        run = plain.setdefault("run", {})
        if isinstance(run, dict):
            own = run.get("set", [])
            run["set"] = [*(own if isinstance(own, list) else [own]), text]
