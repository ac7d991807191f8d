"""Which options of ``DataSpec`` apply to which kind of data; others are refused, not ignored."""

from __future__ import annotations

from allpull.errors import BadInput
from allpull.schema.trainspec import DataSpec

FOR_FILES = (
    *("test_path", "test_size", "test_resize", "crop", "min_area", "mean", "std", "turn"),
    *("ahead", "on_odd", "odd_limit", "resizer"),
)
"""Options of images that are decoded while the training runs: packs and image folders."""
FOR_PACKS_ALONE = ("first_size", "growth_epochs", "threads", "block", "mixed", "by_files", "access", "fast_decode")
FOR_FOLDERS_ALONE = ("workers",)


def refuse_in_memory(data: DataSpec) -> None:
    """Refuse options of ``data`` that do not apply to data in memory.

    Raises:
        BadInput: there are some; all are named.
    """
    _refuse(
        data,
        (*FOR_FILES, *FOR_PACKS_ALONE),
        "only for packs",
        hint="omit them, or make a pack with allpull pack and set data.name = pack",
    )
    _refuse(data, FOR_FOLDERS_ALONE, "only for image folders", hint="omit it, or set data.name = imagefolder")


def refuse_in_pack(data: DataSpec) -> None:
    """Refuse options of ``data`` that do not apply to packs; raises as ``refuse_in_memory``."""
    _refuse(data, FOR_FOLDERS_ALONE, "only for image folders", hint="packs are read by threads: set data.threads")


def refuse_in_folder(data: DataSpec) -> None:
    """Refuse options of ``data`` that do not apply to image folders; raises as ``refuse_in_memory``."""
    _refuse(data, FOR_PACKS_ALONE, "only for packs", hint="omit them; image folders have data.workers")
    if data.shift_pixels:
        raise BadInput("data.shift_pixels is not for image folders", hint="set it to 0; data.crop = random also shifts")


def _refuse(data: DataSpec, names: tuple[str, ...], reason: str, *, hint: str) -> None:
    default = DataSpec()
    given = [name for name in names if getattr(data, name) != getattr(default, name)]
    if given:
        named = ", ".join(f"data.{name}" for name in given)
        raise BadInput(f"{named}: {reason}, and data.name is '{data.name}'", hint=hint)
