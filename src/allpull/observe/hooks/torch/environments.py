"""Observe the environments of reinforcement learning, and actions that a policy draws from its distribution.

Only classes of the packages are wrapped, never those of a program: they may be pickled by value for other processes.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any, Callable

from ..inference.step_inference import StepInference

ENVIRONMENTS = {
    "gymnasium.core": ("Wrapper",),
    "gymnasium.wrappers.common": ("TimeLimit", "OrderEnforcing", "PassiveEnvChecker"),
    "gymnasium.vector.sync_vector_env": ("SyncVectorEnv",),
    "gymnasium.vector.async_vector_env": ("AsyncVectorEnv",),
    "gym.core": ("Wrapper",),
    "gym.vector.vector_env": ("VectorEnv",),
    "stable_baselines3.common.vec_env.base_vec_env": ("VecEnv",),
    "stable_baselines3.common.vec_env.dummy_vec_env": ("DummyVecEnv",),
}
"""Classes of environments, by module."""

METHODS = ("step", "reset")


def watch_environments(inference: StepInference) -> Callable[[ModuleType], None]:
    """The function to call with each module of ``ENVIRONMENTS`` when it is imported."""

    def wrap(module: ModuleType) -> None:
        for name in ENVIRONMENTS[module.__name__]:
            kind = getattr(module, name, None)
            for method in METHODS:
                if kind is not None and method in vars(kind):
                    setattr(kind, method, _observed(inference, vars(kind)[method]))

    return wrap


def _observed(inference: StepInference, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def observed(*args: Any, **kwargs: Any) -> Any:
        depth = inference.environment_begins()
        try:
            return function(*args, **kwargs)
        finally:
            inference.leave(depth)

    return observed


def watch_sampling(inference: StepInference) -> None:
    """Observe the first action that is drawn without gradients from a distribution, in a program without a loader."""
    from torch import distributions, is_grad_enabled  # noqa: PLC0415  this runs after torch was imported
    from torch.compiler import is_compiling  # noqa: PLC0415

    def observed(sample: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(sample)
        def draws(*args: Any, **kwargs: Any) -> Any:
            if not is_compiling() and not is_grad_enabled():
                inference.draws_action()
            return sample(*args, **kwargs)

        return draws

    for kind in (distributions.Distribution, distributions.Categorical, distributions.Normal, distributions.Bernoulli):
        kind.sample = observed(kind.sample)  # type: ignore[method-assign]  # wrapping is the point
