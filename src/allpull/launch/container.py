"""Run a command inside an Apptainer or Singularity container: the same command, with the runtime in front.

A launcher asks ``python`` for the interpreter that its command begins with, and wraps the whole. Nothing else of a
job changes: the container sees the environment, the working directory, the home and the run directory.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from allpull.errors import BadInput, MissingPart
from allpull.schema.spec import ContainerSpec


def python(container: ContainerSpec) -> str:
    """The Python that runs a job's processes: the container's, or ours where there is none."""
    return container.python if container.image else sys.executable


def wrap(container: ContainerSpec, command: Sequence[str], *, shown: Sequence[Path] = ()) -> list[str]:
    """``command`` inside the container; unchanged where no image was given.

    ``shown`` are folders of ours that the command needs at their own paths; those of the user's come from
    ``container.binds``.

    >>> wrap(ContainerSpec(image="t.sif", binds=("/data:/data:ro",)), ["python3", "-V"], shown=[Path("/runs/a")])
    ['apptainer', 'exec', '--bind', '/runs/a', '--bind', '/data:/data:ro', 't.sif', 'python3', '-V']

    Raises:
        BadInput: a path that the runtime cannot be told.
    """
    if not container.image:
        return list(command)
    binds = [word for path in shown for word in ("--bind", _bindable(path))]
    binds += [word for bind in container.binds for word in ("--bind", bind)]
    return [container.runtime, "exec", *binds, *container.options, _image(container.image), *command]


def check(container: ContainerSpec) -> None:
    """Make sure that the container can be run on this machine, as far as can be seen without running it.

    Raises:
        MissingPart: the runtime is not installed.
        BadInput: the image is a file that is not there.
    """
    if not container.image:
        return
    if shutil.which(container.runtime) is None:
        raise MissingPart(
            f"container.runtime: no {container.runtime} on this machine",
            hint="load its module, or set container.runtime to the one that is here",
        )
    if "://" not in container.image and not Path(container.image).exists():
        raise BadInput(
            f"container.image: {container.image} is not there",
            hint="build it: apptainer build allpull.sif containers/allpull.def",
        )


def _bindable(path: Path) -> str:
    text = str(path)
    if ":" in text or "," in text:
        raise BadInput(
            f"{text} cannot be shown to a container: its runtime splits paths at ':' and ','",
            hint="give a place without them with --out",
        )
    return text


def _image(image: str) -> str:
    """The image as an operand, which must not read as an option."""
    return f"./{image}" if image.startswith("-") else image
