"""Records are on disk wherever a process may end without Python's exit functions: its training is over."""

from __future__ import annotations

import textwrap

import pytest
from tests.observe.hooks.conftest import LOOP, TRAINING, Watch

pytestmark = [pytest.mark.torch, pytest.mark.slow]

SAMPLES = [16, 16, 16, 16, 6]
TRAIN = "\ndef train():\n" + textwrap.indent(LOOP, "    ")
DESTROYS = """
import os
import torch.distributed as dist
dist.init_process_group("gloo", init_method="file://" + os.path.abspath("store"), rank=0, world_size=1)
train()
dist.destroy_process_group()
"""
ENDS = """
import os, threading
thread = threading.Thread(target=train)
thread.start()
thread.join()
"""


@pytest.mark.parametrize("after", [DESTROYS, ENDS], ids=["destroys its group", "its thread ends"])
def test_a_rank_whose_training_is_over_has_its_records_on_disk(watched: Watch, after: str) -> None:
    """Ray's workers train in a thread, and end without Python's exit functions."""
    run = watched(TRAINING + TRAIN + after + "os._exit(0)\n")
    assert [step.samples for step in run.steps()] == 2 * SAMPLES
    assert not run.events("end")


def test_a_fork_of_a_process_that_trains_in_a_thread_writes_nothing(watched: Watch) -> None:
    fork = """
import os, threading
trained, forked = threading.Event(), threading.Event()

def run():
    train()
    trained.set()
    forked.wait()

thread = threading.Thread(target=run)
thread.start()
trained.wait()
child = os.fork()
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
forked.set()
thread.join()
"""
    run = watched(TRAINING + TRAIN + fork)
    assert run.code == 0
    assert [step.samples for step in run.steps()] == 2 * SAMPLES


def test_a_thread_that_python_does_not_wait_for_ends_without_a_word(watched: Watch) -> None:
    waits = """
import threading
trained = threading.Event()

def run():
    train()
    trained.set()
    threading.Event().wait()

threading.Thread(target=run, daemon=True).start()
trained.wait()
"""
    run = watched(TRAINING + TRAIN + waits)
    assert (run.code, run.err) == (0, "")
    assert [step.samples for step in run.steps()] == 2 * SAMPLES
    assert run.events("end")[0].steps == 10


def test_what_is_saved_in_memory_to_be_sent_is_no_checkpoint(watched: Watch) -> None:
    """Tensors that are pickled are, and, since torch 2.14, objects that collectives send as weights only."""
    source = (
        TRAINING
        + """
import io, os, pickle
import torch.distributed as dist
from torch.distributed import distributed_c10d
dist.init_process_group("gloo", init_method="file://" + os.path.abspath("store"), rank=0, world_size=1)
exec("def send(thing, file): torch.save(thing, file)", vars(distributed_c10d))
"""
        + LOOP
        + """
    pickle.dumps(model.state_dict())
    dist.all_gather_object([None], model.state_dict())
    distributed_c10d.send(losses, io.BytesIO())
    torch.save(model.state_dict(), "model.pt")
"""
    )
    run = watched(source)
    assert (run.code, run.err) == (0, "")
    assert [(span.name, span.step) for span in run.events("span")] == [("checkpoint", 5), ("checkpoint", 10)]
