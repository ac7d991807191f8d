"""Read a host file: one host per line, as for ssh, mpirun and PBS."""

from __future__ import annotations

from allpull.errors import BadInput
from allpull.regular_file import regular

MAX_FILE_BYTES = 1 << 20


def entries(path: str) -> list[str]:
    """The first word of each line of the file at ``path``; comments and further words (``slots=4``) are ignored.

    Raises:
        BadInput: it cannot be read, or is larger than 1 MiB.
    """
    try:
        with open(path, "rb", opener=regular) as file:
            content = file.read(MAX_FILE_BYTES + 1)
        text = content.decode("utf-8")
    except (OSError, ValueError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or "not UTF-8 text, or no path"
        raise BadInput(f"cannot read the host file {path}: {reason}", hint="a host a line, as UTF-8 text") from error
    if len(content) > MAX_FILE_BYTES:
        raise BadInput(f"the host file {path} is larger than 1 MiB", hint="a host a line, as UTF-8 text")
    columns = (line.split("#", 1)[0].split() for line in text.splitlines())
    return [column[0] for column in columns if column]
