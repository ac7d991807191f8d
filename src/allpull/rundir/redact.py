"""Remove secrets from text before it is written: environment, command lines, scripts, remotes, log tails.

Secrets are recognised by name (``--api-key=…``, ``HF_TOKEN``), by shape (known token prefixes, private keys,
credentials in a URL) and by the program to which they are given (``curl -u me:…``). Standard library only.
"""

from __future__ import annotations

import re
import shlex
from typing import Any, Dict, List, Sequence, Tuple

MASK = "[redacted]"

_PART = r"[-_.]*(?:[A-Za-z0-9]+[-_.]+)*"  # before the last part of a name
_NAME = (
    rf"{_PART}"
    r"(?:[A-Za-z0-9]*(?:pass(?:word|wd|phrase|code)|secrets?|tokens?|(?:access|account|private|secret)key)|"
    r"(?:db|key|root|store|user)?pass|api[-_]?keys?|auth(?:orization|[-_]?key)?|cred(?:ential)?s?|cookie|bearer|jwt|otp|"
    r"dsn|sharedaccesssignature|"
    r"(?<=[-_.])(?:pwd?|keys?|pat|psk|sas))"  # a bare `key` or PWD is no secret: "missing key: conv1" stays readable
    r"(?:[-_.](?:id|value|str(?:ing)?|base64|json))?(?:[-_.]?\d{1,3})?"
)
_FLAG_NAME = rf"(?:{_NAME}|pwd?|keys?|pat|psk|sas)"  # after dashes these are secrets too
_SECRET_NAME = re.compile(_NAME, re.IGNORECASE)
_SECRET_FLAG = re.compile(_FLAG_NAME, re.IGNORECASE)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_FLAG = re.compile(r"--?([A-Za-z][\w.-]*)")
_BEGIN = r"(?<![A-Za-z0-9_.-])"  # a match begins once in a word: at each of its parts, long words would take minutes
_QUOTED = "'\"'\"'[^']*'\"'\"'" + r"|\$?\"[^\"]*\"|\$?'[^']*'"  # the first: single quotes inside of single quotes
_SCHEME = r"(?:(?:apikey|basic|bearer|digest|token)\s+)?"  # of the header Authorization, before its value
_NAMED = re.compile(rf"(?i){_BEGIN}({_NAME})(\"?'?\s*(?:=>|[=:])\s*)({_QUOTED}|{_SCHEME}[^\s,;&\"']+)")
_SETTER = r"(?:setenv|setx|set(?:\s+-\S+)+|git\s+config(?:\s+-\S+)*|config(?:ure)?\s+set(?:\s+-\S+)*)"
_SET = re.compile(rf"(?i){_BEGIN}({_SETTER}\s+{_NAME})(\s+)({_QUOTED}|(?!-)[^\s;&|]+)")
_FLAG_IN_TEXT = re.compile(rf"(?i){_BEGIN}(--?{_FLAG_NAME})(\s+|=)({_QUOTED}|(?!-)\S+)")
_SHAPES = (
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
    re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{20,}|gl(?:pat|rt|dt|ptt|cbt)-[\w-]{16,})"),
    re.compile(r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[\w-]{16,}|xox[abprs]-[\w-]{10,}|npm_[A-Za-z0-9]{20,}|pypi-[\w-]{20,})"),
    re.compile(r"\b(?:sk_live_\w{16,}|xapp-[\w-]{10,}|r8_\w{20,}|nvapi-[\w-]{16,}|lsv2_\w{20,}|wandb_v1_\w{16,})"),
    re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\bAIza[\w-]{30,}|\bya29\.[\w-]{16,}|\bdop_v1_\w{16,}"),
    re.compile(r"(?i)(?<=\bkey[=:])[A-Za-z0-9+/_-]{20,}={0,2}"),  # long base64: the key of an error is a word
    re.compile(r"(?<![\w-])eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"),  # a JSON web token
    re.compile(r"(?i)\b(?:bearer|basic)\s+[A-Za-z0-9+/=._-]{12,}"),
    re.compile(r"(?<=hooks\.slack\.com/services/)[\w/]+|\b\d{8,10}:AA[\w-]{30,}"),  # who knows these may post there
    re.compile(r"(?i)(?<=;pwd=)[^;\s'\"]+"),  # of a database
)
_IN_QUERY = re.compile(  # parameters of a URL: a long code is a key, a short one is a status
    r"(?i)(?<=[?&#;])((?:[a-z0-9]+[-_])*(?:key|sig|signature|sas|pwd?|pat)|code(?==[^&\s'\"#]{16}))(=)([^&\s'\"#]+)"
)
_WORD = r"(?!'?\[redacted\])(?:'[^']*'|\"[^\"]*\"|[^\s'\"|;&])+"  # of a shell
_SAME_COMMAND = r"(?:[^|;&\n]|[|;&](?![|;&\s])|\\\n){0,800}?\s"  # bounded: long texts would take minutes
_CURL = r"-[aBfgGiIjJklLnNpqsSvZ]*"  # options of curl that take no value, before one that does
_GIVEN = tuple(  # to programs in which an option means a password, by what the value must have
    re.compile(rf"(?<![\w.-])((?:{program})\s(?:{_SAME_COMMAND})?{option})(){value}({_WORD})")
    for program, option, value in (
        ("curl", rf"(?:{_CURL}[uU]\s*|--(?:proxy-)?user(?:\s+|=))", r"(?=\S*:)"),
        ("curl", rf"{_CURL}b\s*", r"(?=\S*=)"),  # cookies; else it is a file of them
        ("https?|xh", r"-a\s*", r"(?=\S*:)"),
        ("smbclient", r"(?:-U\s*|--user(?:\s+|=))", r"(?=\S*%)"),
        ("redis-cli", r"-a\s+", ""),
        ("sshpass", r"-p\s*", ""),
        ("mysql|mysqldump|mariadb|mariadb-dump|7z", "-p", ""),
        ("zip|unzip", r"-P\s*", ""),
        (r"(?:docker|podman|nerdctl)\s+login", r"-p\s*", ""),
        (r"wandb\s+login", "", r"(?=[\w-]{32})"),
    )
)
_URL = re.compile(r"(?<=://)(?!\[redacted\]@)[^/?#\s]+(?=@)")  # to the last @: a password may hold one


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
    for named in (_NAMED, _FLAG_IN_TEXT, _IN_QUERY):
        value, masked = _mask_named(named, value)
        count += masked
    value, masked = _mask_given(value)
    return value, count + masked


def _mask_given(value: str) -> Tuple[str, int]:
    """``value`` without the secrets that follow the name of a program or a variable as words of their own."""
    count = 0
    for given in (_SET, *_GIVEN):
        masked = 1
        while masked:  # one match covers a command up to its first password
            value, masked = _mask_named(given, value)
            count += masked
    return value, count


def _mask_named(pattern: "re.Pattern[str]", value: str) -> Tuple[str, int]:
    count = 0

    def mask(match: "re.Match[str]") -> str:
        nonlocal count
        if MASK in match.group(3) or MASK.startswith(match.group(3)) or _is_count(match.group(1), match.group(3)):
            return match.group(0)
        count += 1
        return match.group(1) + match.group(2) + MASK

    return pattern.sub(mask, value), count


def _is_count(name: str, value: str) -> bool:
    """Whether it is a number of them: ``--max-tokens 512`` counts the tokens of a language model."""
    return name.lower().endswith(("tokens", "keys")) and value.isdecimal()


def arguments(values: Sequence[str]) -> Tuple[List[str], int]:
    """An argument list with its secrets masked, also ``--token X`` in two arguments.

    >>> arguments(["train.py", "--token", "abc", "--lr=0.1"])
    (['train.py', '--token', '[redacted]', '--lr=0.1'], 1)
    """
    clean: List[str] = []
    count = 0
    secret_flag = ""
    for value in values:
        flag = _FLAG.fullmatch(value)
        if secret_flag and not flag and not _is_count(secret_flag, value):
            clean.append(MASK)
            count += 1
        else:
            masked, masked_here = text(value)
            clean.append(masked)
            count += masked_here
        secret_flag = flag.group(1) if flag and _SECRET_FLAG.fullmatch(_CAMEL.sub("_", flag.group(1))) else ""
    line, masked_here = _mask_given(shlex.join(clean))
    words = _words(line) if masked_here else clean
    return (words, count + masked_here) if len(words) == len(clean) else (clean, count)


def _words(line: str) -> List[str]:
    try:
        return shlex.split(line)
    except ValueError:  # a secret was half of something in quotes
        return []


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


def tree(value: Any) -> Tuple[Any, int]:
    """Nested dictionaries and lists with their secrets masked; a list of texts may be an argument list.

    >>> tree({"env": {"HF_TOKEN": "x"}, "command": ["train.py", "--pw", "y"], "steps": 20})
    ({'env': {'HF_TOKEN': '[redacted]'}, 'command': ['train.py', '--pw', '[redacted]'], 'steps': 20}, 2)
    """
    if isinstance(value, str):
        return text(value)
    if isinstance(value, dict):
        parts = {name: _named(name, part) for name, part in value.items()}
        return {name: part for name, (part, _) in parts.items()}, sum(count for _, count in parts.values())
    if not isinstance(value, (list, tuple)):
        return value, 0
    if all(isinstance(part, str) for part in value):
        return arguments(value)
    clean = [tree(part) for part in value]
    return [part for part, _ in clean], sum(count for _, count in clean)


def _named(name: str, value: Any) -> Tuple[Any, int]:
    return (MASK, 1) if isinstance(value, str) and value and is_secret_name(name) else tree(value)


def is_secret_name(name: str) -> bool:
    """Whether a value with this name is a secret.

    >>> [is_secret_name(name) for name in ("apiKey", "WANDB_API_KEY", "db-password", "keyboard", "monkey")]
    [True, True, True, False, False]
    """
    return _SECRET_NAME.fullmatch(_CAMEL.sub("_", name)) is not None
