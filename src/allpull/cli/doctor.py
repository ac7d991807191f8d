"""``allpull doctor``: what on this machine would spoil a measurement."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from allpull.cli.options import AsJson
from allpull.cli.say import answer_json, show_result

EXAMPLE = "allpull doctor --out /scratch/runs"

UNFIT = 3  # exit code where a check is bad

TORCH_TIMEOUT_S = 60.0  # importing torch from a cold network disk takes this long, and no longer


def doctor(
    place: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for run directories.")] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Check what on this machine would spoil a measurement.

    The exit code is 3 if a check is bad; warnings do not count.
    """
    from allpull.observe.host import describe_host  # noqa: PLC0415  none of these is needed for --help
    from allpull.output_folder import existing_folder  # noqa: PLC0415
    from allpull.probe.doctor import examine  # noqa: PLC0415
    from allpull.probe.machine_facts import read_facts  # noqa: PLC0415
    from allpull.report.terminal.doctor import verdicts  # noqa: PLC0415
    from allpull.schema.base import tag  # noqa: PLC0415
    from allpull.schema.host import HostRecord  # noqa: PLC0415
    from allpull.schema.probed import DoctorResult  # noqa: PLC0415

    folder = existing_folder(place)
    host = HostRecord.model_validate(describe_host(str(folder)))
    checks = examine(read_facts(host, folder, torch_timeout_s=TORCH_TIMEOUT_S))
    if as_json:
        answer_json(DoctorResult(schema=tag("doctor"), checks=checks))
    else:
        show_result(verdicts(checks))
    if any(check.state == "bad" for check in checks):
        raise typer.Exit(UNFIT)
