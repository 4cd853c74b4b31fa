"""Downloads from a local server: complete and correct, or absent."""

import gzip
import hashlib
import http.server
import re
import threading
from dataclasses import replace

import pytest

import modicum as mo
from modicum_lab.datasets.download import DownloadError, fetch
from modicum_lab.datasets.source import Source, data_folder

CONTENT = bytes(range(256)) * 20_000
DIGEST = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/missing":
            self.send_error(404)
            return
        body = CONTENT[:1000] if self.path == "/broken" else CONTENT
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


def names(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("digest", [DIGEST, f"md5:{hashlib.md5(CONTENT).hexdigest()}", None])
def test_download_is_whole(server, tmp_path, digest):
    fetch(f"{server}/file", tmp_path / "deep" / "file", digest, progressbar=False)
    assert (tmp_path / "deep" / "file").read_bytes() == CONTENT
    assert names(tmp_path) == ["file"]


def test_without_a_checksum_the_size_is_compared(server, tmp_path):
    length = len(CONTENT)
    for sizes in ((length + 1, 2 * length), (0, length - 1)):
        with pytest.raises(DownloadError, match=f"it has {length:,} bytes instead of"):
            fetch(f"{server}/file", tmp_path / "file", None, False, sizes)
        assert names(tmp_path) == []
    fetch(f"{server}/file", tmp_path / "file", None, False, (length, length))
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("progressbar", [True, False])
def test_progress_is_shown_to_the_end(server, tmp_path, monkeypatch, capsys, progressbar):
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes standard error for a terminal
    fetch(f"{server}/file", tmp_path / "file", DIGEST, progressbar)
    assert ("download file" in capsys.readouterr().err) is progressbar


@pytest.mark.parametrize(
    ("path", "digest", "word"),
    [
        ("file", "sha256:" + "0" * 64, "checksum"),
        ("broken", None, "stopped after 1,000"),
        ("missing", None, "404"),
    ],
)
def test_what_is_wrong_leaves_nothing(server, tmp_path, path, digest, word):
    with pytest.raises(DownloadError, match=word):
        fetch(f"{server}/{path}", tmp_path / "file", digest, progressbar=False)
    assert names(tmp_path) == []


def test_a_spoilt_download_leaves_the_file_that_was_there(server, tmp_path):
    (tmp_path / "file").write_text("before")
    with pytest.raises(DownloadError):
        fetch(f"{server}/broken", tmp_path / "file", None, progressbar=False)
    assert (tmp_path / "file").read_text() == "before"


SOURCE = Source("toy", "toys", ("toy.csv",), "http://127.0.0.1:9/toy.csv", "toy.csv")


def test_without_a_network_one_sentence_says_what_to_put_where(tmp_path):
    for download, why in ((True, "cannot be downloaded"), (False, "downloads are off")):
        with pytest.raises(mo.DataError) as caught:
            SOURCE.find(tmp_path, download, progressbar=False)
        text = str(caught.value)
        assert why in text
        assert str(tmp_path / "toys") in text
        assert SOURCE.url in text
        assert "MODICUM_DATA" in text
        assert "\n" not in text
    assert names(tmp_path) == []


def test_a_file_is_fetched_once(server, tmp_path):
    source = replace(SOURCE, url=f"{server}/file", digest=DIGEST)
    found = source.find(tmp_path, progressbar=False)
    assert found == tmp_path / "toys" / "toy.csv"
    unreachable = replace(source, url="http://127.0.0.1:9/")
    assert unreachable.find(tmp_path) == found


def test_a_loader_downloads(tmp_path, monkeypatch):
    from modicum_lab.datasets import covertype as loader
    from modicum_lab.datasets.covertype_table import RECIPE
    from modicum_lab.tests import dataset_files as files

    table, content = files.covertype()
    (tmp_path / "served.gz").write_bytes(content)
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    source = replace(RECIPE.source, url=(tmp_path / "served.gz").as_uri(), digest=digest)
    monkeypatch.setattr(
        "modicum_lab.datasets.covertype_table.RECIPE", replace(RECIPE, source=source)
    )
    made = loader(tmp_path / "data", progressbar=False)
    assert len(made.rows) == len(table)
    assert gzip.decompress((tmp_path / "data/covtype/covtype.data.gz").read_bytes())


def test_the_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("MODICUM_DATA", str(tmp_path / "there"))
    assert data_folder() == tmp_path / "there"
    assert data_folder("here").name == "here"
    monkeypatch.delenv("MODICUM_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert data_folder() == tmp_path / "modicum"


def test_downloads_have_sha256_digests():
    from modicum_lab import datasets as d

    tables = ("bankruptcy", "claims", "covertype", "flights", "higgs", "taxi")
    modules = [getattr(d, f"{name}_table") for name in tables]
    sources = [*(module.SOURCE for module in modules), *d.mnist_digits.SOURCES.values()]
    unknown = [s.name for s in sources if s.digest is None]
    assert unknown == ["taxi"]  # no checksum is published: sizes are compared
    assert all((s.sizes is None) == (s.digest is not None) for s in sources)
    assert all(re.fullmatch("sha256:[0-9a-f]{64}", s.digest) for s in sources if s.digest)
