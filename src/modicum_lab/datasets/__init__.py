"""Public data sets as rows, from a local folder or downloaded from their source."""

from modicum_lab.datasets.bankruptcy_table import bankruptcy, bankruptcy_shaped
from modicum_lab.datasets.claims_table import claims
from modicum_lab.datasets.covertype_table import covertype
from modicum_lab.datasets.dataset import Dataset
from modicum_lab.datasets.encoding import splines, standardised
from modicum_lab.datasets.flights_table import flights
from modicum_lab.datasets.frames import frame
from modicum_lab.datasets.higgs_table import higgs, higgs_shaped
from modicum_lab.datasets.mnist_digits import mnist
from modicum_lab.datasets.source import data_folder
from modicum_lab.datasets.taxi_table import taxi

__all__ = [
    "Dataset",
    "bankruptcy",
    "bankruptcy_shaped",
    "claims",
    "covertype",
    "data_folder",
    "flights",
    "frame",
    "higgs",
    "higgs_shaped",
    "mnist",
    "splines",
    "standardised",
    "taxi",
]
