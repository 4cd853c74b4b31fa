"""Modicum: Bayesian regression for tables with millions of rows."""

from importlib import import_module as _import_module
from importlib.metadata import version as _version
from types import ModuleType as _ModuleType

from modicum import diagnostics, engines, methods, models, priors, rows
from modicum.digest import Digest, digest
from modicum.errors import (
    ConvergenceError,
    DataError,
    ModicumError,
    ModicumWarning,
    ResourceError,
    SettingError,
)
from modicum.fit import fit
from modicum.ledger import Ledger
from modicum.log_posterior import LogPosterior, Mode
from modicum.methods import (
    HMC,
    HMCECS,
    NUTS,
    Auto,
    ECSExpert,
    FlyMC,
    Laplace,
    SignedHMCECS,
    StochasticGradient,
)
from modicum.methods.sgmcmc.named import (
    BAOAB,
    CPSGHMC,
    EWSG,
    EWSGLD,
    EWSGSVRG,
    PSGLD,
    SGHMC,
    SGHMCCV,
    SGLD,
    SGLDCV,
    SVRGLD,
)
from modicum.methods.sgmcmc.step_size import Decay
from modicum.models import Model
from modicum.models.constraints import cholesky_corr, interval, ordered, positive, simplex
from modicum.models.from_numpyro import from_numpyro
from modicum.posterior import Posterior, average_predictions, compare
from modicum.progress import ProgressEvent
from modicum.rows import Rows
from modicum.sample import sample

__version__ = _version("modicum")

__all__ = [
    "BAOAB",
    "CPSGHMC",
    "EWSG",
    "EWSGLD",
    "EWSGSVRG",
    "HMC",
    "HMCECS",
    "NUTS",
    "PSGLD",
    "SGHMC",
    "SGHMCCV",
    "SGLD",
    "SGLDCV",
    "SVRGLD",
    "Auto",
    "ConvergenceError",
    "DataError",
    "Decay",
    "Digest",
    "ECSExpert",
    "FlyMC",
    "Laplace",
    "Ledger",
    "LogPosterior",
    "Mode",
    "Model",
    "ModicumError",
    "ModicumWarning",
    "Posterior",
    "ProgressEvent",
    "ResourceError",
    "Rows",
    "SettingError",
    "SignedHMCECS",
    "StochasticGradient",
    "__version__",
    "average_predictions",
    "cholesky_corr",
    "compare",
    "datasets",
    "diagnostics",
    "digest",
    "engines",
    "fit",
    "from_numpyro",
    "interval",
    "methods",
    "models",
    "ordered",
    "positive",
    "priors",
    "rows",
    "sample",
    "simplex",
]


def __getattr__(name: str) -> _ModuleType:
    if name == "datasets":  # the laboratory's, imported when first used
        return _import_module("modicum.datasets")
    raise AttributeError(f"module 'modicum' has no attribute {name!r}")


def __dir__() -> list[str]:
    # for completion in notebooks, which would else offer every module that has been imported
    return __all__
