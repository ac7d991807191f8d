"""Remove secrets from text before it is written: environment, command lines, scripts, remotes, log tails.

Secrets are recognised by name (``--api-key=…``, ``HF_TOKEN``) and by shape (known token prefixes,
 private keys, credentials in a URL). Standard library only.
"""

from __future__ import annotations

import re
from typing import Dict, List, Sequence, Tuple

MASK = "[redacted]"

_NAME = (
    r"(?:[A-Za-z0-9]+[-_.])*"
    r"(?:pass(?:word|wd|phrase)?|secrets?|tokens?|api[-_]?keys?|auth(?:orization|[-_]?key)?|credentials?|cookie|bearer|"
    r"dsn|(?<=[-_.])(?:pwd|keys?))"  # a bare `key` or PWD is no secret: "missing key: conv1" must stay readable
    r"(?:[-_.](?:id|value|str(?:ing)?|base64|json))?"
)
_FLAG_NAME = rf"(?:{_NAME}|pw|pwd|keys?)"  # after dashes these are secrets too
_SECRET_NAME = re.compile(_NAME, re.IGNORECASE)
_SECRET_FLAG = re.compile(_FLAG_NAME, re.IGNORECASE)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_FLAG = re.compile(r"--?([A-Za-z][\w.-]*)")
_NAMED = re.compile(rf"(?i)(?<![A-Za-z0-9])({_NAME})(\"?'?\s*[=:]\s*)(\"[^\"]*\"|'[^']*'|[^\s,;&\"']+)")
_FLAG_IN_TEXT = re.compile(rf"(?i)(--?{_FLAG_NAME})(\s+|=)(\"[^\"]*\"|'[^']*'|(?!-)\S+)")
_SHAPES = (
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
    re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{20,}|glpat-[\w-]{16,})"),
    re.compile(r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[\w-]{16,}|xox[abprs]-[\w-]{10,}|npm_[A-Za-z0-9]{20,}|pypi-[\w-]{20,})"),
    re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\bAIza[\w-]{30,}"),
    re.compile(r"(?i)(?<=\bkey[=:])[A-Za-z0-9+/_-]{20,}={0,2}"),  # long base64: the key of an error is a word
    re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"),  # a JSON web token
    re.compile(r"(?i)\b(?:bearer|basic)\s+[A-Za-z0-9+/=._-]{12,}"),
)
_URL = re.compile(r"(?<=://)(?!\[redacted\]@)[^/\s@]+(?=@)")


def text(value: str) -> Tuple[str, int]:
    """``value`` with its secrets masked, and how many there were.

    >>> text("git clone https://me:s3cret@example.org/x")
    ('git clone https://[redacted]@example.org/x', 1)
    >>> text("train.py --api-key abc123 --lr 0.1")
    ('train.py --api-key [redacted] --lr 0.1', 1)
    """
    count = 0
    for shape in _SHAPES:
        value, masked = shape.subn(MASK, value)
        count += masked
    value, masked = _URL.subn(MASK, value)
    count += masked
    for named in (_NAMED, _FLAG_IN_TEXT):
        value, masked = _mask_named(named, value)
        count += masked
    return value, count


def _mask_named(pattern: "re.Pattern[str]", value: str) -> Tuple[str, int]:
    count = 0

    def mask(match: "re.Match[str]") -> str:
        nonlocal count
        if MASK in match.group(3) or MASK.startswith(match.group(3)):
            return match.group(0)
        count += 1
        return match.group(1) + match.group(2) + MASK

    return pattern.sub(mask, value), count


def arguments(values: Sequence[str]) -> Tuple[List[str], int]:
    """An argument list with its secrets masked, also ``--token X`` in two arguments.

    >>> arguments(["train.py", "--token", "abc", "--lr=0.1"])
    (['train.py', '--token', '[redacted]', '--lr=0.1'], 1)
    """
    clean: List[str] = []
    count = 0
    after_secret_flag = False
    for value in values:
        flag = _FLAG.fullmatch(value)
        if after_secret_flag and not flag:
            clean.append(MASK)
            count += 1
        else:
            masked, masked_here = text(value)
            clean.append(masked)
            count += masked_here
        after_secret_flag = flag is not None and _SECRET_FLAG.fullmatch(_CAMEL.sub("_", flag.group(1))) is not None
    return clean, count


def mapping(values: Dict[str, str]) -> Tuple[Dict[str, str], int]:
    """Variables with their secrets masked.

    >>> mapping({"HF_TOKEN": "x", "OMP_NUM_THREADS": "1"})
    ({'HF_TOKEN': '[redacted]', 'OMP_NUM_THREADS': '1'}, 1)
    """
    clean: Dict[str, str] = {}
    count = 0
    for name, value in values.items():
        if is_secret_name(name) and value:
            clean[name] = MASK
            count += 1
        else:
            clean[name], masked_here = text(value)
            count += masked_here
    return clean, count


def is_secret_name(name: str) -> bool:
    """Whether a value with this name is a secret.

    >>> [is_secret_name(name) for name in ("apiKey", "WANDB_API_KEY", "db-password", "keyboard", "monkey")]
    [True, True, True, False, False]
    """
    return _SECRET_NAME.fullmatch(_CAMEL.sub("_", name)) is not None
