"""Draws of every subsampling method: the same from memory, a store, and after a crash."""

from dataclasses import replace

import numpy as np
import pytest

import modicum as mo
from helpers.interrupted import Crash, saved_iterations
from helpers.slow import slowly
from helpers.targets import logistic_rows, quick, same_draws
from modicum.run import iterations, runner

ROWS = logistic_rows(600, dtype="float32")  # as a store holds them
METHODS = [
    mo.HMCECS(),
    mo.EWSGSVRG(step_size=0.05, batch=5, every=7),
    *slowly(
        mo.HMCECS(certainty=40, subsample=40, blocks=20, refreshes=4),
        mo.SignedHMCECS(batch=5, products=20, blocks=4),
        mo.FlyMC(),
        mo.SGHMCCV(step_size=0.1, batch=4),
        mo.CPSGHMC(step_size=0.05, batch=8, clusters=4),
    ),
]


def sampled(method, rows=ROWS, **settings):
    return quick(mo.models.Logistic(), rows, method=method, tune=60, **settings)


@pytest.fixture(scope="module", params=METHODS, ids=lambda method: method.name)
def first(request):
    return request.param, sampled(request.param)


def test_store_and_memory_give_the_same_draws(first, tmp_path, monkeypatch):
    method, post = first
    store = mo.rows.ingest(ROWS, tmp_path / "store", shard_rows=100, progressbar=False)
    # rows are fetched ahead, like those of a large store; test_sample.py has those of a small one
    fetched, real = [], iterations.Fetcher._read

    def read(self, drawn):
        fetched.append(len(drawn))
        return real(self, drawn)

    monkeypatch.setattr(iterations.Fetcher, "_read", read)
    ahead = sampled(replace(method, memory_limit=0), store)
    assert fetched
    assert same_draws(post, ahead)
    for name, values in post.stats.items():
        np.testing.assert_array_equal(ahead.stats[name], values)


@pytest.mark.slow
def test_stacked_chains_draw_from_the_same_posterior(first):
    method, post = first
    stacked = sampled(method, parallel="stacked")
    np.testing.assert_allclose(stacked["beta"][:, :5], post["beta"][:, :5], rtol=1e-6)


def test_a_crash_loses_nothing(first, tmp_path, monkeypatch):
    method, post = first
    real = mo.run.checkpoint.Checkpoint.append

    def append(self, done, *rest):
        real(self, done, *rest)
        if done >= 70:  # in the middle of sampling
            raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(runner, "CHUNK_SECONDS", 0.0)  # a checkpoint every iteration
        patch.setattr(mo.run.checkpoint.Checkpoint, "append", append)
        with pytest.raises(Crash):
            sampled(method, checkpoint=tmp_path)
    assert saved_iterations(tmp_path) == 70
    resumed = sampled(method, checkpoint=tmp_path)
    assert same_draws(post, resumed)
    assert resumed.ledger.counts == post.ledger.counts
    assert resumed.tuning == post.tuning
