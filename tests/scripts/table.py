"""Real programs: how each is started, and what is to be seen of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.observe.hooks.conftest import Watched, torchrun

from allpull.observe.agent.remote_setup import free_port

PROGRAMS = Path(__file__).parent / "programs"
ALONE = (sys.executable,)
ACCELERATE = (sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_machines=1")
ACCELERATE += ("--mixed_precision=no", "--dynamo_backend=no")


@dataclass(frozen=True, kw_only=True)
class Script:
    """One program, how it is started, and what is to be seen of it on each rank."""

    name: str
    start: tuple[str, ...] = ALONE
    arguments: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()  # packages
    tool: str | None = None  # a program that must be there
    variables: Mapping[str, str] = field(default_factory=dict)
    ranks: int = 2
    samples: Sequence[int | None]  # of each step of one epoch; None: not known
    epochs: int = 2
    passes: list[int]  # backward passes, likewise
    evaluations: int = 0  # spans after each epoch
    sanity: int = 0  # spans before the first step
    checkpoints: bool = False  # after each epoch
    unsaved: int = 0  # last epochs without one
    ends: bool = True  # its ranks end with Python's exit functions
    loader: bool = True  # batches come from a loader
    proof: bool = False  # takes as long as a measurement
    partial: int = 0  # first steps that are recorded from their backward pass on, which shows that the program trains
    also: Callable[[Watched], None] | None = None  # what else is to be seen of this program

    def __str__(self) -> str:
        return "-".join([self.name, *self.arguments, str(self.ranks), *filter(None, [self.tool])])

    @property
    def path(self) -> Path:
        """The program itself."""
        return PROGRAMS / f"{self.name}.py"


def sends_of_a_comm_hook(run: Watched) -> None:
    """What a comm hook sends is known by its begin, and steps of a scaler that found no finite gradients are tagged."""
    for rank in (0, 1):
        assert [kind.op for kind in run.events("collective_kind", rank)] == ["all_reduce"]
        sent = [one for step in run.steps(rank) for one in step.collectives or ()]
        assert [one[1] for one in sent] == list(range(8))  # one bucket a step
        assert all(one[2] and one[3] is None and one[4] is None for one in sent)
        assert ["skipped" in step.tags for step in run.steps(rank)] == [number == 5 for number in range(8)]


MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": str(free_port()),
}

ACCUMULATED = [2, 2, 1]
ACCELERATED = Script(
    name="accelerate_loop",
    start=torchrun(2),
    needs=("accelerate",),
    samples=[16, 16, 8],  # accelerate fills the last batch up
    passes=ACCUMULATED,
    evaluations=1,
    checkpoints=True,
)
COMPILED = Script(
    name="compiled", arguments=("aot_eager",), start=torchrun(2), samples=4 * [8], passes=4 * [1], epochs=6
)
SCRIPTS = [
    Script(
        name="accelerate_loop",
        start=(*ACCELERATE, "--num_processes=1"),
        needs=("accelerate",),
        ranks=1,
        samples=[16, 16, 16, 16, 6],
        passes=[2, 2, 2, 2, 1],
        evaluations=1,
        checkpoints=True,
    ),
    ACCELERATED,
    replace(
        ACCELERATED,
        start=(*ACCELERATE, "--num_processes=2", f"--mpirun_hostfile={PROGRAMS / 'hosts'}"),
        tool="mpirun",
        proof=True,
        variables=MPI,
    ),
    Script(
        name="hf_trainer",
        start=torchrun(2),
        needs=("transformers", "accelerate"),
        samples=[6, 6, 6, 3],
        passes=[2, 2, 2, 1],
        evaluations=1,
        checkpoints=True,
    ),
    Script(
        name="lightning_fit",
        arguments=("1",),
        needs=("lightning",),
        ranks=1,
        samples=[16, 16, 16, 16, 6],
        passes=[2, 2, 2, 2, 1],
        evaluations=1,
        sanity=1,
        checkpoints=True,
    ),
    Script(
        name="lightning_fit",
        arguments=("2",),
        needs=("lightning",),
        samples=[16, 16, 3],
        passes=ACCUMULATED,
        evaluations=1,
        sanity=1,
        checkpoints=True,
    ),
    Script(
        name="lightning_gan",
        start=torchrun(2),
        needs=("lightning",),
        samples=[16, 16, 3],
        passes=3 * [2],
        checkpoints=True,
    ),
    Script(
        name="geometric",
        start=torchrun(2),
        needs=("torch-geometric",),
        samples=[16, 16, 3],
        passes=3 * [1],
        evaluations=1,
    ),
    Script(
        name="skorch_fit",
        needs=("skorch",),
        ranks=1,
        samples=[32, 32, 16],
        passes=3 * [1],
        evaluations=1,
        checkpoints=True,
    ),
    Script(
        name="keras_fit",
        needs=("keras",),
        ranks=1,
        samples=[16, 16, 16, 16, 6],
        passes=5 * [1],
        evaluations=1,
        partial=1,
    ),
    Script(
        name="fastai_fit",
        needs=("fastai",),
        ranks=1,
        samples=4 * [16],  # it drops the last batch
        passes=4 * [1],
        evaluations=1,
        checkpoints=True,
        partial=1,
    ),
    Script(
        name="stable_baselines",
        needs=("stable-baselines3", "gymnasium"),
        ranks=1,
        samples=[None, *23 * [64]],  # which parts of its network it calls is known after the first
        passes=24 * [1],
        epochs=1,
        checkpoints=True,
        partial=1,
    ),
    Script(
        name="sac",
        needs=("stable-baselines3", "gymnasium"),
        ranks=1,
        samples=[None, *23 * [256]],  # as above
        passes=24 * [3],
        epochs=1,
        checkpoints=True,
        partial=1,
        loader=False,
    ),
    Script(
        name="ppo_ranks",
        start=torchrun(2),
        needs=("gymnasium",),
        samples=[None, *23 * [32]],  # as above
        passes=24 * [1],
        epochs=1,
        partial=1,
        loader=False,
    ),
    Script(
        name="ignite_ddp",
        start=torchrun(2),
        needs=("pytorch-ignite",),
        samples=[16, 16, 16, 16, 6],
        passes=5 * [1],
        evaluations=1,
        checkpoints=True,
    ),
    Script(
        name="mmengine_fit",
        needs=("mmengine",),
        ranks=1,
        samples=3 * [20],
        passes=3 * [2],
        evaluations=1,
        checkpoints=True,
    ),
    Script(
        name="sentence_pairs",
        proof=True,
        start=torchrun(2),
        needs=("sentence-transformers", "datasets", "accelerate"),
        variables={"PYTHONWARNINGS": "ignore::FutureWarning"},  # of DDP, which names the line that calls it: ours
        samples=4 * [8],  # of 70 pairs: it drops the last batch on several ranks
        passes=4 * [1],
        evaluations=1,
        checkpoints=True,
    ),
    Script(
        name="trl_sft",
        proof=True,
        start=torchrun(2),
        needs=("trl", "datasets", "accelerate"),
        samples=[8, 8, 8, 8, 4],
        passes=[2, 2, 2, 2, 1],
        evaluations=1,
        checkpoints=True,
    ),
    Script(
        name="trl_grpo",
        proof=True,
        needs=("trl", "datasets", "accelerate"),
        ranks=1,
        samples=16 * [None],  # its batches are lists of prompts
        passes=16 * [1],
        checkpoints=True,
    ),
    Script(
        name="deepspeed_zero",
        arguments=("1",),
        start=torchrun(2),
        needs=("deepspeed",),
        variables={"DS_ACCELERATOR": "cpu", "PYTHONWARNINGS": "ignore"},  # its loader pins memory, without a GPU
        samples=4 * [16],
        passes=4 * [2],
        evaluations=1,
        checkpoints=True,
    ),
    Script(
        name="deepspeed_zero",
        proof=True,
        arguments=("3",),
        start=torchrun(2),
        needs=("deepspeed",),
        variables={"DS_ACCELERATOR": "cpu", "PYTHONWARNINGS": "ignore"},
        samples=4 * [16],
        passes=4 * [2],
        evaluations=1,
        checkpoints=True,
    ),
    Script(
        name="ray_train",
        proof=True,
        needs=("ray",),
        variables={"RAY_USAGE_STATS_ENABLED": "0"},
        samples=[8, 8, 8, 8, 3],
        passes=5 * [1],
        checkpoints=True,
        unsaved=1,
        ends=False,
        partial=1,
    ),
    Script(name="fsdp_transformer", start=torchrun(2), samples=[16, 16, 3], passes=ACCUMULATED, checkpoints=True),
    Script(name="fully_sharded", start=torchrun(2), samples=[8, 8, 8, 8, 3], passes=5 * [1], evaluations=1),
    Script(
        name="mixed_precision",
        start=torchrun(2),
        samples=[16, 16, 16, 14],
        passes=4 * [2],
        also=sends_of_a_comm_hook,
    ),
    COMPILED,
]
"""What the tests run; each takes some seconds."""

LONG = [
    replace(COMPILED, arguments=("inductor",)),
    Script(
        name="horovod_loop",
        start=(sys.executable, "-m", "horovod.runner.launch", "--gloo", "-np", "2", sys.executable),
        needs=("horovod",),
        samples=[8, 8, 8, 8, 3],
        passes=5 * [1],
        evaluations=1,
    ),
]
"""What is only run by ``make proof``: a real compiler, and a framework that must be built."""
