"""MNIST: handwritten digits (LeCun, Cortes and Burges)."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np

from modicum.errors import DataError
from modicum.models import MLP
from modicum.rows import Rows
from modicum_lab.datasets.dataset import Dataset
from modicum_lab.datasets.source import Folder, Source

MIRROR = "https://ossci-datasets.s3.amazonaws.com/mnist/"
DIGESTS = {  # SHA-256 of the original archives
    "train-images-idx3-ubyte": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}
SOURCES = {
    name: Source(
        name="mnist",
        folder="mnist",
        files=(f"{name}.gz", name),
        url=f"{MIRROR}{name}.gz",
        saved=f"{name}.gz",
        digest=f"sha256:{digest}",
    )
    for name, digest in DIGESTS.items()
}


def mnist(folder: Folder = None, download: bool = True, progressbar: bool = True) -> Dataset:
    """MNIST: 60,000 images of digits to fit and 10,000 to test, 28 by 28 bytes each.

    Rows are held as bytes (`Rows.dtype` is uint8), which networks scale to [0, 1] themselves. The
    model is the multilayer perceptron of the EWSG paper. Parameters as in `covertype` (12 MB).
    """
    parts = {
        name: _read(source.find(folder, download, progressbar)) for name, source in SOURCES.items()
    }
    fit, test = (
        Rows(
            x=parts[f"{part}-images-idx3-ubyte"],
            y=parts[f"{part}-labels-idx1-ubyte"],
            dtype="uint8",
        )
        for part in ("train", "t10k")
    )
    return Dataset(
        name="mnist",
        rows=fit,
        model=MLP(classes=10),
        description="handwritten digits 0 to 9, one byte per pixel",
        source=MIRROR,
        test=test,
    )


def _read(path: Path) -> np.ndarray:
    """Read an IDX file: two zero bytes, the type, the number of axes, their lengths, the data."""
    with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
        data = file.read()
    axes = data[3] if len(data) > 4 and data[:3] == b"\x00\x00\x08" else 0
    shape = np.frombuffer(data, ">u4", axes, 4) if len(data) >= 4 + 4 * axes else np.zeros(0)
    if not axes or int(np.prod(shape)) != len(data) - 4 - 4 * axes:
        raise DataError(f"{path} is not a complete IDX file of bytes; fetch it again.")
    return np.frombuffer(data, np.uint8, offset=4 + 4 * axes).reshape(shape.astype(int))
