"""Posteriors are saved and loaded; damaged and foreign files raise a clear error."""

import errno
import os
import zipfile
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import numpy as np
import pytest

from helpers.disks import small_disk
from helpers.refusals import refused
from modicum.errors import DataError, ModicumWarning, ResourceError, SettingError
from modicum.ledger import Ledger
from modicum.models import Logistic
from modicum.models.over_draws import ModelPredictor
from modicum.posterior import Posterior


@pytest.fixture
def post():
    rng = np.random.default_rng(1)
    ledger = Ledger(rows=100, full_data=9_000)
    ledger.add("mode", 300, "hessian", passes=3)
    return Posterior(
        draws={"beta": rng.normal(size=(2, 30)), "a/b ü": rng.normal(size=(2, 30, 3))},
        stats={"diverging": rng.uniform(size=(2, 30)) < 0.1},
        ledger=ledger,
        labels={"a/b ü": (("x", "y", "z"),)},
        weights=rng.choice([-1.0, 1.0], p=[0.1, 0.9], size=(2, 30)),
        warnings=[ModicumWarning("doubt", "it is doubtful", "look again", share=0.5)],
        tuning={"step": {"value": np.float32(0.5), "why": "dual averaging"}, "mass": np.eye(3)},
        settings={"seed": 3, "shape": (1, 2), "nothing": None, "nan": float("nan"), "f": Ledger},
        predictor=ModelPredictor(Logistic()),
    )


def test_round_trip(post, tmp_path):
    path = tmp_path / "run.posterior"
    post.save(path)
    back = Posterior.load(path)
    for name, x in post.draws.items():
        np.testing.assert_array_equal(back[name], x)
        assert back[name].dtype == x.dtype
    np.testing.assert_array_equal(back.stats["diverging"], post.stats["diverging"])
    assert back.stats["diverging"].dtype == bool
    np.testing.assert_array_equal(back.weights, post.weights)
    assert back.ledger == post.ledger
    assert back.labels == post.labels
    assert back.warnings == post.warnings
    assert back.tuning["step"] == {"value": 0.5, "why": "dual averaging"}
    np.testing.assert_array_equal(back.tuning["mass"], np.eye(3))
    assert back.settings["shape"] == (1, 2)
    assert back.settings["nothing"] is None
    assert np.isnan(back.settings["nan"])
    assert back.settings["f"] == repr(Ledger)
    assert back.model_predictor() == post.predictor
    assert back.summary().equals(post.summary())
    assert [p.name for p in tmp_path.iterdir()] == ["run.posterior"]


def test_a_model_of_another_version_is_kept_but_not_rebuilt(post, tmp_path):
    post.predictor, post.predictor_spec = None, {"family": "Later", "settings": {"scale": 2.0}}
    post.save(tmp_path / "p")
    back = Posterior.load(tmp_path / "p")
    refused(SettingError, "has no model", back.predict, {"x": np.ones(4)})
    back.save(tmp_path / "again")
    assert Posterior.load(tmp_path / "again").predictor_spec == back.predictor_spec


def test_no_pickles(post, tmp_path):
    post.save(tmp_path / "p")
    with zipfile.ZipFile(tmp_path / "p") as archive:
        assert {n.rsplit(".")[-1] for n in archive.namelist()} == {"json", "npy"}
    evil = tmp_path / "evil"
    with zipfile.ZipFile(tmp_path / "p") as old, zipfile.ZipFile(evil, "w") as new:
        for name in old.namelist():
            if name == "0.npy":
                with new.open(name, "w") as member:
                    np.lib.format.write_array(member, np.array([print], object))
            else:
                new.writestr(name, old.read(name))
    refused(DataError, "damaged", Posterior.load, evil)


WRITERS = {
    "save": lambda post, path: post.save(path),
    "report": lambda post, path: post.report(path),
    "to_netcdf": lambda post, path: post.to_netcdf(path),
    "predictive": lambda post, path: post.predictive({"x": [[1.0]]}, out=path),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_that_cannot_be_written_is_a_clear_error_before_the_work(name, post, tmp_path):
    post.draws = None  # so that any work fails
    nowhere = tmp_path / "missing" / "a.out"
    refused(SettingError, "there is no folder '.*missing' to", WRITERS[name], post, nowhere)


def test_it_is_said_why_a_file_cannot_be_written(post, tmp_path, monkeypatch):
    refused(SettingError, "is a folder: name a file in it", post.save, tmp_path)
    (tmp_path / "file").touch()
    refused(SettingError, r"there is no folder '.*file'", post.save, tmp_path / "file" / "a.out")
    refused(SettingError, "cannot be written", post.save, tmp_path / ("long" * 100))
    refused(SettingError, "the name of a file is needed, not int", post.save, 3)
    monkeypatch.setattr(os, "access", lambda *_: False)
    refused(SettingError, r"cannot be written \(no permission\)", post.save, tmp_path / "a.out")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


WHOLE = ["save", "report", "to_netcdf"]


@pytest.fixture
def plain(post, monkeypatch):
    """Return a posterior that each of the writers can write."""
    pytest.importorskip("h5netcdf")
    monkeypatch.setattr("modicum.posterior.report.report_page", lambda *contents: "page" * 1000)
    return Posterior({"beta": post["beta"]}, {}, post.ledger)


@pytest.mark.parametrize("name", WHOLE)
def test_a_disk_that_fills_up_leaves_the_old_file(name, plain, tmp_path):
    path = tmp_path / "a.out"
    path.write_text("old")
    with small_disk(1000), pytest.raises(ResourceError, match=r"the disk of '.*a.out' is full"):
        WRITERS[name](plain, path)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.out"]


@pytest.mark.parametrize("name", WHOLE)
def test_a_killed_process_leaves_the_old_file(name, plain, tmp_path, monkeypatch):
    class Killed(BaseException):
        """Simulates the death of the process."""

    path, link = tmp_path / "a.out", tmp_path / "link"
    path.write_text("old")
    link.symlink_to(path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", mock.Mock(side_effect=Killed))
        with pytest.raises(Killed):
            WRITERS[name](plain, link)
    assert path.read_text() == "old"
    WRITERS[name](plain, link)
    assert link.is_symlink()
    assert path.stat().st_size > 1000


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names here")
def test_what_is_not_a_file_is_not_replaced_by_one(post, tmp_path):
    """As root, a save to the null device once replaced it for the whole machine."""
    os.mkfifo(tmp_path / "pipe")
    refused(SettingError, "is not a file: name another", post.save, tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()


def test_threads_that_save_to_one_file_do_not_meet(post, tmp_path):
    """Of 45 such saves 20 failed, since threads of a process shared a temporary file."""
    path = tmp_path / "p"
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: post.save(path), range(40)))
    np.testing.assert_array_equal(Posterior.load(path)["beta"], post["beta"])
    assert [p.name for p in tmp_path.iterdir()] == ["p"]


def test_room_for_outcomes_is_taken_before_they_are_written(tmp_path, monkeypatch):
    """A map of a file ends the process by a signal where the disk is full."""
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(os, "posix_fallocate", mock.Mock(side_effect=full), raising=False)
    draws = {"beta": np.ones((1, 50, 1)), "intercept": np.zeros((1, 50))}
    post = Posterior(draws, {}, Ledger(rows=3), predictor=ModelPredictor(Logistic()))
    with pytest.raises(ResourceError, match="is full"):
        post.predictive({"x": [[1.0]]}, draws=20, out=tmp_path / "outcomes.npy")
