"""Public data sets as rows, from a local folder or downloaded from their source."""

from modicum.datasets.bankruptcy_table import bankruptcy, bankruptcy_shaped
from modicum.datasets.claims_table import claims
from modicum.datasets.covertype_table import covertype
from modicum.datasets.dataset import Dataset
from modicum.datasets.encoding import splines, standardised
from modicum.datasets.flights_table import flights
from modicum.datasets.frames import frame
from modicum.datasets.higgs_table import higgs, higgs_shaped
from modicum.datasets.mnist_digits import mnist
from modicum.datasets.source import data_folder
from modicum.datasets.taxi_table import taxi

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
