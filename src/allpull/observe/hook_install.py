"""Install the start-up hook in a run directory, and set the variables that carry it to the processes of a program.

The hook is a folder of its own: ``sitecustomize.py``, and the modules that run in a rank under the private name
``_allpull``, so that neither allpull nor its dependencies interfere with the imports of the program.
"""

from __future__ import annotations

import os
import shutil
from typing import Dict, List, Mapping

from ..rundir import layout
from ..rundir.job_file import JOB_VARIABLE
from ..rundir.write import private_folder

PACKAGE = "_allpull"
CARRIED = ("PYTHONPATH", JOB_VARIABLE, "ALLPULL_SIDECAR", "ALLPULL_HOST")
CONTAINERS = ("APPTAINERENV_", "SINGULARITYENV_")  # prefixes that reach the inside of a container even with --cleanenv
CARRIED_MODULES = (
    "kernel.py",
    *(os.path.join("rundir", name) for name in ("layout.py", "job_file.py", "write.py", "redact.py")),
    os.path.join("rundir", "live", "activity.py"),
)
BINDS = ("APPTAINER_BIND", "SINGULARITY_BIND")
MPI_LIST = "OMPI_MCA_mca_base_env_list"  # variables that OpenMPI's mpirun exports to other hosts


def install_hook(directory: str) -> str:
    """Copy the hook into run directory ``directory``; returns the folder for PYTHONPATH.

    Raises:
        OSError: it cannot be written.
    """
    ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    folder = os.path.join(directory, layout.HOOK)
    for name in (*_modules(ours, "observe"), *CARRIED_MODULES):
        target = os.path.join(folder, PACKAGE, name)
        private_folder(os.path.dirname(target))
        shutil.copyfile(os.path.join(ours, name), target)
    for room in ("", "rundir", os.path.join("rundir", "live")):
        with open(os.path.join(folder, PACKAGE, room, "__init__.py"), "w", encoding="utf-8") as file:
            file.write('"""What allpull runs inside a rank."""\n')
    startup = os.path.join(ours, "observe", "startup", "sitecustomize.py")
    shutil.copyfile(startup, os.path.join(folder, "sitecustomize.py"))
    return folder


def _modules(source: str, room: str) -> List[str]:
    """Every module below ``room`` but for ``startup/``, as paths relative to ``source``."""
    return sorted(
        os.path.relpath(os.path.join(folder, name), source)
        for folder, _, names in os.walk(os.path.join(source, room))
        if os.path.basename(folder) not in ("startup", "__pycache__")
        for name in names
        if name.endswith(".py")
    )


def variables(directory: str, job_file: str, environ: Mapping[str, str]) -> Dict[str, str]:
    """The variables to add to ``environ`` so that the processes of a program are observed.

    They pass through OpenMPI's mpirun and into containers; the run directory is bound into the container.
    """
    hook = os.path.join(directory, layout.HOOK)
    inherited = environ.get("PYTHONPATH", "")
    ours = {"PYTHONPATH": os.pathsep.join([hook, inherited] if inherited else [hook]), JOB_VARIABLE: job_file}
    for prefix in CONTAINERS:
        for name in ("PYTHONPATH", JOB_VARIABLE):
            ours[prefix + name] = ours[name]
    for name in BINDS:
        ours[name] = ",".join(part for part in (environ.get(name, ""), directory) if part)
    listed = environ.get(MPI_LIST, "")
    ours[MPI_LIST] = ";".join([*([listed] if listed else []), *CARRIED[:2]])
    return ours
