"""Object storage: a real S3 server on the loopback, with broken connections and missing keys."""

import os
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import modicum as mo
from modicum.rows import ingest, lake
from modicum.rows.reading import read_formula

pytest.importorskip("moto", reason="the S3 server of these tests is moto's")
pytest.importorskip("flask")
pytestmark = pytest.mark.slow

N = 4000
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_MAX_ATTEMPTS": "1",
}


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


class Proxy(threading.Thread):
    """Stands before the server; `resets` connections are cut after some kilobytes of an answer."""

    def __init__(self, to, cut_after=20_000):
        super().__init__(daemon=True)
        self.to, self.cut_after, self.resets, self.cut = to, cut_after, 0, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]

    def run(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self.to))
            threading.Thread(target=self._up, args=(client, server), daemon=True).start()
            threading.Thread(target=self._down, args=(server, client), daemon=True).start()

    def _up(self, client, server):
        with client, server:
            while data := self._received(client):
                server.sendall(data)

    def _down(self, server, client):
        sent = 0
        while data := self._received(server):
            sent += len(data)
            if self.resets > 0 and sent > self.cut_after:
                self.resets, self.cut = self.resets - 1, self.cut + 1
                linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"  # a reset, and no orderly end
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                client.close()
                return
            try:
                client.sendall(data)
            except OSError:
                return

    @staticmethod
    def _received(end):
        try:
            return end.recv(4096)
        except OSError:
            return b""


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(1)
    return pd.DataFrame(
        {
            "a": rng.normal(size=N),
            "b": rng.normal(size=N),
            "g": rng.choice(["u", "v", "w"], N),
            "y": rng.integers(0, 2, N),
        }
    )


@pytest.fixture(scope="module")
def server(table, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        port = free_port()
        log = open(tmp_path_factory.mktemp("s3") / "log", "w")  # noqa: SIM115
        process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
            stdout=log, stderr=log,
        )  # fmt: skip
        try:
            _wait_for(port)
            proxy = Proxy(port)
            proxy.start()
            _fill(port, table)
            yield proxy
            proxy.listener.close()
        finally:
            process.kill()
            process.wait()
            log.close()


def _wait_for(port):
    for _ in range(300):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.2)
    pytest.fail("the S3 server did not start")


def _fill(port, table):
    from pyarrow import fs

    system = fs.S3FileSystem(
        endpoint_override=f"127.0.0.1:{port}", scheme="http", region="us-east-1",
        allow_bucket_creation=True,
    )  # fmt: skip
    system.create_dir("trips")
    for i in range(4):
        part = pa.Table.from_pandas(table.iloc[i * 1000 : (i + 1) * 1000])
        folder = f"trips/months/month={i}"
        pq.write_table(part, f"{folder}/0.parquet", filesystem=system, row_group_size=250)


def uri(server, key="months"):
    return (
        f"s3://trips/{key}?endpoint_override=127.0.0.1:{server.port}&scheme=http&region=us-east-1"
    )


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(lake, "FIRST_PAUSE", 0.01)


CHOICE = {"outcome": "y", "predictors": ["a", "b", "g", "month"], "progressbar": False}


def expected(table):
    whole = table.assign(month=np.repeat(np.arange(4), 1000))
    return mo.Rows.from_table(whole, "y", CHOICE["predictors"], dtype="float32")


def test_a_bucket_is_read_as_a_table(server, table, tmp_path):
    rows = ingest(uri(server), tmp_path / "s", **CHOICE)
    assert rows.fingerprint() == expected(table).fingerprint()
    some = ingest(uri(server, "months/month=2/*.parquet"), tmp_path / "g", **CHOICE)
    assert len(some) == 1000


def test_a_reset_connection_is_read_on(server, table, tmp_path):
    server.resets, server.cut = 1, 0
    rows = ingest(uri(server), tmp_path / "s", **CHOICE)
    assert server.cut == 1
    assert rows.fingerprint() == expected(table).fingerprint()


def test_a_server_that_stays_away_is_a_sentence_and_the_next_call_goes_on(
    server, table, tmp_path, monkeypatch
):
    scanned, asked = lake.LakeSource._scanned, []

    def away(self, fragment, columns):
        asked.append((fragment.path, len(columns)))
        if "month=3" in fragment.path and len(columns) > 1:
            raise OSError("AWS Error NETWORK_CONNECTION: curlCode: 7, Couldn't connect to server")
        return scanned(self, fragment, columns)

    monkeypatch.setattr(lake.LakeSource, "_scanned", away)
    with pytest.raises(mo.DataError, match=r"month=3/0.parquet cannot be read .*NETWORK"):
        ingest(uri(server), tmp_path / "s", shard_rows=300, **CHOICE)
    assert sum("month=3" in path for path, many in asked if many > 1) == lake.ATTEMPTS
    assert list(tmp_path.glob(".s.ingest-*"))
    monkeypatch.setattr(lake.LakeSource, "_scanned", lambda *a: asked.append(a[1]) or scanned(*a))
    asked.clear()
    rows = ingest(uri(server), tmp_path / "s", shard_rows=300, **CHOICE)
    assert rows.fingerprint() == expected(table).fingerprint()
    assert not list(tmp_path.glob(".s.ingest-*"))
    assert len(asked) == 4 + 2  # levels of all, and the rest of two files


def test_a_missing_key_and_a_missing_bucket_are_sentences(server, tmp_path):
    with pytest.raises(mo.DataError, match="there is no file at"):
        ingest(uri(server, "nothing/here"), tmp_path / "s", **CHOICE)
    with pytest.raises(mo.ModicumError, match=r"there is no file at|cannot be read"):
        ingest(uri(server).replace("trips", "no-such-bucket"), tmp_path / "s", **CHOICE)
    assert os.listdir(tmp_path) == []


def test_a_key_that_vanishes_while_it_is_read_is_a_sentence(server, tmp_path, monkeypatch):
    source = lake.LakeSource([uri(server)])
    monkeypatch.setattr(source, "_scanned", _gone)
    with pytest.raises(mo.DataError, match="check that it is there"):
        list(source.batches(["a"]))


def _gone(fragment, columns):
    raise FileNotFoundError(f"Path does not exist '{fragment.path}'")


def test_fits_keep_rows_in_the_cache_and_say_so(server, table, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    heard = []
    made = read_formula("y ~ a + g", uri(server), progressbar=heard.append)
    assert made.rows.is_store
    assert any("are kept in" in event.phase for event in heard)
    heard.clear()
    again = read_formula("y ~ a + g", uri(server), progressbar=heard.append)
    assert again.rows.fingerprint() == made.rows.fingerprint()
    assert any("are taken from" in event.phase for event in heard)
    assert not any("ingest" in event.phase for event in heard)
    local = read_formula("y ~ a + g", table, progressbar=False).rows
    assert local.fingerprint() == made.rows.fingerprint()
