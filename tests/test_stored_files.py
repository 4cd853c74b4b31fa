"""Files of earlier versions are read: `stored/VERSION` has one of each kind, and what it answers.

``python tests/test_stored_files.py`` writes those of the version at hand; later versions keep the
folders of earlier ones, as docs/stability.md promises.
"""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import modicum as mo
from helpers.disks import change_page
from helpers.refusals import refused

STORED = Path(__file__).parent / "stored"
VERSIONS = sorted(path.name for path in STORED.iterdir())
NEW = {"hour": [7, 19], "ward": ["b", "c"], "unit": ["u2", "u0"]}
QUIET = {"random_seed": 1, "progressbar": False}


def table():
    """Return forty rows, made without random numbers, whose streams may change."""
    k = np.arange(40)
    columns = {"hour": 24 * (k * 0.618 % 1), "ward": np.array(list("abc"))[k % 3]}
    columns |= {"unit": np.array(["u0", "u1", "u2", "u3"])[k * 7 % 4]}
    return pd.DataFrame(columns | {"late": (k * k % 5 < 2 + (k % 3 == 1)).astype(int)})


def write(folder):
    """Write a file of each kind, and what it says."""
    settings = {"draws": 5, "chains": 2, "progressbar": False, "random_seed": 1}
    post = mo.fit("late ~ bs(hour, df=4) + ward + (1 | unit)", table(), **settings)
    post.save(folder / "posterior")
    fit = mo.fit("late ~ hour + ward", table(), **settings)
    mo.digest(fit, table(), **QUIET).save(folder / "digest")
    columns = {"outcome": "late", "predictors": ["hour", "ward"], "categorical": ["ward"]}
    mo.rows.ingest(table(), folder / "rows", **columns, progressbar=False)
    (folder / "answers.json").write_text(json.dumps(answers(folder), indent=1) + "\n")


def answers(folder):
    """Read the files of a folder and ask each of them; only numbers that use no chance."""
    post = mo.Posterior.load(folder / "posterior")
    digest = mo.Digest.load(folder / "digest")
    fitted = mo.fit("late ~ hour + ward", digest, method="laplace", **QUIET)
    rows = mo.Rows.open(folder / "rows")
    batch = rows.slice(0, len(rows))
    numbers = post.summary()["mean"].to_dict() | {"cost": post.ledger.evaluations}
    numbers |= dict(zip(NEW["ward"], post.predict(NEW).mean.tolist(), strict=True))
    numbers |= {f"sum of {k}": float(np.sum(x, dtype=float)) for k, x in batch.items()}
    estimates = [*fitted.mean("beta").tolist(), float(fitted.mean("intercept"))]
    return {
        "numbers": numbers,
        "words": [post.tuning["priors"], list(rows.columns), list(map(str, rows.levels["ward"]))],
        "from the digest": dict(zip(fitted.lines(["beta", "intercept"]), estimates, strict=True)),
    }


def agree(found, kept):
    """Whether answers agree; draws that are made anew from a digest do within their error."""
    again = found["from the digest"] == pytest.approx(kept["from the digest"], abs=0.15)
    same = found["numbers"] == pytest.approx(kept["numbers"], rel=1e-5)
    return again and same and found["words"] == kept["words"]


@pytest.mark.parametrize("version", VERSIONS)
def test_files_of_a_version_say_what_they_said(version):
    kept = json.loads((STORED / version / "answers.json").read_text())
    assert agree(answers(STORED / version), kept)


def test_a_file_of_another_format_is_refused_and_one_with_other_numbers_is_noticed(tmp_path):
    """Neither passes for the file of the version."""
    folder = tmp_path / "files"
    shutil.copytree(STORED / VERSIONS[0], folder)
    kept = json.loads((folder / "answers.json").read_text())
    other = {"numbers": kept["numbers"] | {"b": 0.5}}
    assert agree(kept, kept)
    assert not agree(kept | other, kept)
    for name, load in (("posterior", mo.Posterior.load), ("digest", mo.Digest.load)):
        change_page(folder / name, f"{name}.json", lambda page: page.update(version=9))
        refused(mo.DataError, "newer Modicum .format 9", load, folder / name)
    page = folder / "rows" / "rows.json"
    page.write_text(page.read_text().replace('"version": ', '"version": 9', 1))
    refused(mo.DataError, "store version 9", mo.Rows.open, folder / "rows")


if __name__ == "__main__":
    place = STORED / sys.argv[1]
    place.mkdir(parents=True, exist_ok=True)
    write(place)
