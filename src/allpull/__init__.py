"""allpull: run, measure, explain and predict synchronous data-parallel training.

Marks for any training loop, at no cost while it is not observed::

    import allpull
    with allpull.phase("augment"): ...
    allpull.step(samples=64)
    allpull.epoch(3)
    allpull.metric("test_top1", 0.97)

Runs, for a notebook or a script (docs/reference/api.md)::

    run = allpull.open_run("runs/20260312T101500Z_digits_n4_ab12cd34")
    run.explain()
    allpull.compare("runs/before", "runs/after")
    allpull.predict(["runs/one", "runs/two"], ranks=[8, 64])
    allpull.train("digits", ranks=2, train__epochs=3).wait(progress=print)
"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from allpull.marks import epoch as epoch
from allpull.marks import metric as metric
from allpull.marks import phase as phase
from allpull.marks import step as step
from allpull.version import __version__ as __version__

if TYPE_CHECKING:
    from allpull.api.comparison import Comparison as Comparison
    from allpull.api.comparison import compare as compare
    from allpull.api.forecasting import Forecast as Forecast
    from allpull.api.forecasting import predict as predict
    from allpull.api.jobs import Job as Job
    from allpull.api.jobs import JobFailed as JobFailed
    from allpull.api.jobs import Progress as Progress
    from allpull.api.jobs import run as run
    from allpull.api.jobs import train as train
    from allpull.api.results import Explanation as Explanation
    from allpull.api.results import Metrics as Metrics
    from allpull.api.results import Scaling as Scaling
    from allpull.api.runs import Run as Run
    from allpull.api.runs import open_run as open_run
    from allpull.api.runs import open_runs as open_runs
    from allpull.api.verbs import explain as explain
    from allpull.api.verbs import report as report
    from allpull.api.verbs import scaling as scaling
    from allpull.errors import AllpullError as AllpullError
    from allpull.errors import BadInput as BadInput
    from allpull.errors import RunDirError as RunDirError

API = {
    "open_run": "allpull.api.runs",
    "open_runs": "allpull.api.runs",
    "Run": "allpull.api.runs",
    "scaling": "allpull.api.verbs",
    "explain": "allpull.api.verbs",
    "compare": "allpull.api.comparison",
    "report": "allpull.api.verbs",
    "predict": "allpull.api.forecasting",
    "train": "allpull.api.jobs",
    "run": "allpull.api.jobs",
    "Job": "allpull.api.jobs",
    "Progress": "allpull.api.jobs",
    "JobFailed": "allpull.api.jobs",
    "Metrics": "allpull.api.results",
    "Scaling": "allpull.api.results",
    "Explanation": "allpull.api.results",
    "Comparison": "allpull.api.comparison",
    "Forecast": "allpull.api.forecasting",
    "AllpullError": "allpull.errors",
    "BadInput": "allpull.errors",
    "RunDirError": "allpull.errors",
}
"""Name → module, imported when the name is first used: marks need the standard library alone, and come at once."""

__all__ = list(API)
__all__ += ["epoch", "metric", "phase", "step"]


class _Verb(ModuleType):
    # A package with the name of a function is both: `allpull.train(…)` and `import allpull.train.loop`. Importing a
    # package sets it as an attribute of its parent, so that a plain function would be replaced.

    def __call__(self, *args: Any, **options: Any) -> Any:
        return _function(self)(*args, **options)

    @property
    def __doc__(self) -> Any:  # type: ignore[override]  # what `allpull.train?` shows in a notebook
        return _function(self).__doc__

    @property
    def __signature__(self) -> Any:
        return import_module("inspect").signature(_function(self))

    def __reduce__(self) -> Any:  # a function can be sent to another process, a module cannot
        return import_module, (self.__name__,)


def _function(package: ModuleType) -> Any:
    name = package.__name__.rpartition(".")[2]
    return getattr(import_module(API[name]), name)


def _make_callable(*names: str) -> None:
    for name in names:
        import_module(f"allpull.{name}").__class__ = _Verb  # documented: Customizing module attribute access


_make_callable("compare", "explain", "predict", "report", "train")


def __getattr__(name: str) -> Any:
    if name not in API:
        raise AttributeError(f"module 'allpull' has no attribute '{name}'")
    value = globals()[name] = getattr(import_module(API[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
