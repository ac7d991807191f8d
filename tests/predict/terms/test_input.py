"""Facts: the knee of a sweep, storage that hosts share, caches that grow with hosts, and a limit never reached."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from allpull.predict.terms import input as terms
from allpull.predict.terms.input import Floats, Input, Limit

DRAWS = 200


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def exactly(rate: float) -> Limit:
    return terms.reached(np.full(DRAWS, rate))


def hard(**limits: object) -> Input:
    return Input(sharpness=np.full(DRAWS, 16.0), bytes_per_sample=1e5, **limits)  # type: ignore[arg-type]


@pytest.mark.parametrize("p", [1.45, 3.0, 12.0])
def test_a_sweep_of_workers_gives_back_its_own_parameters(p: float) -> None:
    workers = np.array([1.0, 2, 4, 8, 16])
    rates = ((workers * 171) ** -p + 764.0**-p) ** (-1 / p)  # d and C of the worker sweep on Marconi100
    noise = np.exp(rng().normal(0, 0.002, (DRAWS, workers.size)))
    worker, cores, sharpness = terms.fitted_workers(workers, rates * noise, rng())
    assert np.median(worker.rate) == pytest.approx(171, rel=0.05)
    assert np.median(cores.rate) == pytest.approx(764, rel=0.05)
    assert np.median(sharpness) == pytest.approx(p, rel=0.2)
    assert not cores.is_bound


def test_cores_that_a_sweep_did_not_reach_are_a_bound() -> None:
    workers = np.array([1.0, 2, 4])
    worker, cores, _ = terms.fitted_workers(workers, np.tile(workers * 134.0, (DRAWS, 1)), rng())
    assert np.median(worker.rate) == pytest.approx(134, rel=0.01)
    assert cores.is_bound
    assert cores.least == pytest.approx(536)
    assert (cores.rate >= 536).all()


@pytest.mark.parametrize("together", [1.0, 0.55])
def test_hosts_share_a_limit_only_where_they_slow_each_other(together: float) -> None:
    alone, shared = terms.of_hosts({1: np.full(DRAWS, 1e9), 2: np.full(DRAWS, 2e9 * together)}, rng())
    assert not alone.is_bound
    assert shared.is_bound == (together == 1.0)
    assert (shared.rate >= 2e9 * together - 1).all()


def test_twice_the_hosts_on_one_file_system_get_half_each() -> None:
    storage = hard(shared=exactly(1e9))
    assert storage.rate(2, None) == pytest.approx(np.full(DRAWS, 5000.0))
    assert storage.rate(4, None) == pytest.approx(np.full(DRAWS, 2500.0))


def test_caches_of_more_hosts_hold_more_of_the_data() -> None:
    # memory adds up: 4 hosts hold all of it, and storage is no limit any more (super-linear speed-up)
    storage = hard(shared=exactly(1e9), cache_bytes=64e9, dataset_bytes=256e9)
    assert [storage.cached_share(hosts) for hosts in (1, 2, 4, 8)] == [0.25, 0.5, 1.0, 1.0]
    dealt = replace(storage, is_dealt=np.array([True, False]))
    assert dealt.cached_share(4).tolist() == [0.25, 1.0]  # in each epoch a host reads other samples than it keeps
    assert np.isinf(storage.rate(4, None)).all()
    assert np.isfinite(storage.rate(4, None, first_epoch=True)).all()


def test_hal_read_a_demand_and_no_limit_so_128_gpus_are_between_no_limit_and_that_demand() -> None:
    # HAL: 64 V100 on 16 hosts read 3.3 GB/s on average and 3.93 at most; nobody measured what its storage can
    hal = Input(sharpness=np.full(DRAWS, 16.0), bytes_per_sample=110e3, shared=terms.at_least(3.93e9, DRAWS, rng()))
    busy_s = np.full(DRAWS, 0.406)
    samples = 4 * 208
    at_64 = terms.wait(hal.seconds(samples, 16, None), busy_s)
    at_128 = terms.wait(hal.seconds(samples, 32, None), busy_s)
    assert at_64 == pytest.approx(np.zeros(DRAWS))
    worst = 32 * samples * 110e3 / 3.93e9 - 0.406
    assert np.quantile(at_128, 0.05) == 0
    assert worst * 0.7 < at_128.max() <= worst
    assert hal.unmeasured(samples / 0.406, 32, None) == ("shared storage",)
    assert hal.unmeasured(samples / 0.406, 16, None) == ()


def test_nothing_known_limits_nothing() -> None:
    free = hard()
    assert np.isinf(free.rate(8, 4)).all()
    assert terms.wait(free.seconds(1000, 8, 4), np.ones(DRAWS)) == pytest.approx(np.zeros(DRAWS))


def test_more_of_anything_never_slows_a_host() -> None:
    def rate(workers: float = 4, cores: float = 800, shared: float = 1e9, hosts: int = 4) -> Floats:
        limited = Input(
            sharpness=terms.drawn_sharpness(DRAWS, rng()),
            bytes_per_sample=1e5,
            worker=exactly(170),
            cores=exactly(cores),
            shared=exactly(shared),
            disk=exactly(4e8),
        )
        return limited.rate(hosts, workers)

    for more in (rate(workers=8), rate(cores=1600), rate(shared=2e9), rate(hosts=2)):
        assert (more >= rate()).all()
    assert (rate() <= 4 * 170).all()
