"""What tests of the labs share: results of real runs, made once, and one whose trainings are written down, not done."""

import pytest

from allpull.labs import overlap, straggler
from allpull.labs.batch import RULES, BatchLab, _result
from allpull.labs.overlap import OverlapLab, run_overlap
from allpull.labs.straggler import StragglerLab, run_straggler
from allpull.schema.labs import BatchTraining, CurvePoint, OverlapResult, StragglerResult

EPOCHS = {32: 6.0, 64: 7.5, 128: 9.0, 256: 12.0, 512: 18.0}
SPEED = {1: {32: 8e3, 64: 16e3, 128: 32e3, 256: 64e3, 512: 80e3, 1024: 100e3}}
SPEED[2] = {batch: 1.5 * speed for batch, speed in SPEED[1].items()}
SAMPLES = 1437


def training(ranks, batch, rule, seed):
    """With warm-up E(B) = 5 (1 + B ÷ 200), roughly, and one of three seeds at 1,024; a fixed rate fails from 512 on."""
    reached = batch < 512 or (rule != "fixed" and (batch < 1024 or (rule == "warmup" and seed == 1)))
    epochs = 40.0
    if reached:
        epochs = 0.5 * seed + EPOCHS.get(batch, 30.0) * (batch / 32 if rule == "fixed" else 1.0)
    speed = SPEED[ranks][batch]
    return BatchTraining(
        ranks=ranks,
        global_batch=batch,
        rule=rule,
        seed=seed,
        reached=reached,
        epochs=epochs,
        seconds=epochs * SAMPLES / speed,
        samples_per_s=speed,
        curve=[
            CurvePoint(epochs=epochs / 2, accuracy=0.8),
            CurvePoint(epochs=epochs, accuracy=0.96 if reached else 0.7),
        ],
    )


@pytest.fixture(scope="session")
def batch_result():
    lab = BatchLab(ranks=2)
    trainings = [
        training(ranks, batch, rule, seed)
        for seed in range(3)
        for batch in lab.batches
        for rule in RULES
        for ranks in (lab.rank_counts if rule == "warmup" else [2])
    ]
    return _result(lab, trainings, 60.0)


@pytest.fixture(scope="session")
def stragglers(made_once):
    """A slow rank and a slow loader on three ranks, as where no virtual hosts can be made."""

    def fill(folder):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(straggler, "why_no_hosts", lambda: "a virtual cluster needs Linux")
            result = run_straggler(StragglerLab(ranks=3), folder)
        (folder / "result.json").write_text(result.model_dump_json(by_alias=True), "utf-8")

    return StragglerResult.model_validate_json((made_once("straggler", fill) / "result.json").read_text("utf-8"))


@pytest.fixture(scope="session")
def overlaps(made_once):
    """Several buckets, and a single one, on two ranks, as where no virtual hosts can be made."""

    def fill(folder):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(overlap, "why_no_hosts", lambda: "a virtual cluster needs Linux")
            result = run_overlap(OverlapLab(sizes_mib=(4.0, 100.0), steps=25), folder)
        (folder / "result.json").write_text(result.model_dump_json(by_alias=True), "utf-8")

    return OverlapResult.model_validate_json((made_once("overlap", fill) / "result.json").read_text("utf-8"))
