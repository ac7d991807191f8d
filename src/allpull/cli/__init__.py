"""The command line: one file per verb, each a thin layer over ``api`` and ``jobs``. Importing this stays cheap.

What a verb needs (torch, polars, charts) is imported inside it, so that ``allpull --help`` answers at once, and
``show`` and ``report`` work where torch is not installed.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Abort, Exit

from allpull.cli import (
    compare,
    completion,
    demo,
    doctor,
    env,
    explain,
    export,
    import_,
    lab,
    ls,
    pack,
    predict,
    probe,
    rehearse,
    rename,
    report,
    rm,
    run,
    show,
    study,
    train,
    tune,
    watch,
)
from allpull.cli.encoding import prepare_streams
from allpull.cli.say import complain, finish_notes, note
from allpull.cli.verb import Verb, VerbGroup, example
from allpull.errors import INTERRUPTED, AllpullError, threads_ran_out
from allpull.version import __version__

OWN_FAILURE = 125  # of allpull itself, distinct from the program's codes (as in `timeout` and `docker run`)
GARBAGE_THRESHOLD = 50_000  # objects; Python's 700 search again and again through modules, of which most live on


class Verbs(VerbGroup):
    """The verbs; an error is one message of what, where and what to do, never a traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run the requested verb; errors become exit codes."""
        try:
            return super().invoke(ctx)
        except BaseException as error:
            code = _reported(error)
            if code is None:
                raise
            raise Exit(code) from None


def _reported(error: BaseException) -> int | None:
    """Say what ended a verb, and return its exit code; None: of this we say nothing."""
    match error:
        case AllpullError():
            complain(error)
            return error.exit_code
        case BrokenPipeError():
            # The reader of our output is gone: `allpull show … | head`. Python would complain again at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        case KeyboardInterrupt():
            note("interrupted")
            return INTERRUPTED
        case _ if threads_ran_out(error):
            hint = "end other programs of this user, or raise the limit (ulimit -u, ulimit -v, pids of a cgroup)"
            complain(AllpullError("the system refused another thread or process", hint=hint))
        case FileNotFoundError(filename=None) if not Path().stat().st_nlink:
            complain(AllpullError("the current folder was removed", hint="go to another one"))
        case OSError():
            complain(_refused(error, "refused by the system"))
        case MemoryError():
            complain(AllpullError("out of memory", hint="raise the limit of this shell or job (ulimit -v, cgroup)"))
        case Exception() if not ("ALLPULL_DEBUG" in os.environ or isinstance(error, Exit | Abort) or _usage(error)):
            hint = "this is a fault in allpull; ALLPULL_DEBUG=1 shows where, please report it"
            complain(AllpullError(f"allpull itself failed: {type(error).__name__}: {error}", hint=hint))
            return OWN_FAILURE
        case _:
            return None
    return AllpullError.exit_code


def _refused(error: OSError, what: str) -> AllpullError:
    return AllpullError(f"{error.strerror or error}: {error.filename or what}")


def _usage(error: Exception) -> bool:
    return hasattr(error, "format_message")  # click's own errors print themselves


def version(requested: bool) -> None:
    """Print the version and stop."""
    if requested:
        typer.echo(f"allpull {__version__}")
        raise Exit


app = typer.Typer(
    name="allpull",
    cls=Verbs,
    help="Run, measure and explain synchronous data-parallel training.",
    epilog=example("allpull demo"),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

VERBS = (
    *(demo.demo, train.train, run.run, env.env, rehearse.rehearse, tune.tune),
    *(watch.watch, show.show, explain.explain, predict.predict, compare.compare, report.report),
    *(export.export, import_.import_),
    *(ls.ls, rename.rename, rm.rm, doctor.doctor),
)
"""Verbs in the order of the help; a new one is a file in this room and an entry here."""

GROUPS = {"probe": probe.probe, "pack": pack.pack, "study": study.study, "lab": lab.lab}
"""Verbs with verbs below them."""

SETTINGS = {"run": run.SETTINGS}
"""Settings of click for a verb whose command line holds another."""

CLASSES = {"compare": compare.Sides}
"""Verbs whose command line typer alone cannot parse."""

for verb in VERBS:
    word = verb.__name__.removesuffix("_")  # import_: the word itself is Python's
    shown = example(sys.modules[verb.__module__].EXAMPLE)
    app.command(word, cls=CLASSES.get(word, Verb), context_settings=SETTINGS.get(word), epilog=shown)(verb)
for name, verbs in GROUPS.items():
    app.add_typer(verbs, name=name)


@app.callback()
def root(
    _: Annotated[
        bool, typer.Option("--version", callback=version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Run, measure and explain synchronous data-parallel training."""


def main() -> None:
    """The ``allpull`` command."""
    gc.set_threshold(GARBAGE_THRESHOLD)
    atexit.register(gc.freeze)  # else Python looks through all modules and records for garbage once more at exit
    prepare_streams()
    if {"--install-completion", "--show-completion"} & set(sys.argv):
        completion.no_space_after_keys()
    try:
        app()
    except OSError as error:  # from help, which is printed before a verb begins
        complain(_refused(error, "standard output"))
        sys.exit(AllpullError.exit_code)
    finally:
        finish_notes()
