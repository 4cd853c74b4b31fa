"""Models of a row: linear-predictor families, neural networks and user-defined models."""

from modicum.errors import SettingError, suggestion
from modicum.models.families import (
    AsymmetricLaplace,
    Beta,
    Binomial,
    Cloglog,
    Exponential,
    Gamma,
    Gaussian,
    HurdlePoisson,
    InverseGaussian,
    Logistic,
    NegativeBinomial,
    Ordinal,
    Poisson,
    Probit,
    Softmax,
    StudentT,
    Weibull,
    ZeroInflatedPoisson,
)
from modicum.models.integrated import IntegratedEffects
from modicum.models.linear_predictor import LinearPredictorModel
from modicum.models.model import BaseModel, Batch, Params
from modicum.models.networks import CNN, MLP, Network
from modicum.models.own import Model
from modicum.models.target import Target
from modicum.models.terms import GroupTerm

__all__ = [
    "CNN",
    "FAMILIES",
    "MLP",
    "AsymmetricLaplace",
    "BaseModel",
    "Batch",
    "Beta",
    "Binomial",
    "Cloglog",
    "Exponential",
    "Gamma",
    "Gaussian",
    "GroupTerm",
    "HurdlePoisson",
    "IntegratedEffects",
    "InverseGaussian",
    "LinearPredictorModel",
    "Logistic",
    "Model",
    "NegativeBinomial",
    "Network",
    "Ordinal",
    "Params",
    "Poisson",
    "Probit",
    "Softmax",
    "StudentT",
    "Target",
    "Weibull",
    "ZeroInflatedPoisson",
]

# Name of each family on the command line.
FAMILIES: dict[str, type[LinearPredictorModel]] = {
    "logistic": Logistic,
    "gaussian": Gaussian,
    "poisson": Poisson,
    "student-t": StudentT,
    "softmax": Softmax,
    "probit": Probit,
    "cloglog": Cloglog,
    "binomial": Binomial,
    "beta": Beta,
    "negative-binomial": NegativeBinomial,
    "zero-inflated-poisson": ZeroInflatedPoisson,
    "hurdle-poisson": HurdlePoisson,
    "gamma": Gamma,
    "inverse-gaussian": InverseGaussian,
    "ordinal": Ordinal,
    "exponential": Exponential,
    "weibull": Weibull,
    "asymmetric-laplace": AsymmetricLaplace,
}
# What other libraries call our families.
CALLED_ELSEWHERE = {
    "bernoulli": "logistic",
    "logit": "logistic",
    "normal": "gaussian",
    "linear": "gaussian",
    "t": "student-t",
    "categorical": "softmax",
    "multinomial": "softmax",
    "cumulative": "ordinal",
    "negbinomial": "negative-binomial",
    "quantile": "asymmetric-laplace",
    "zip": "zero-inflated-poisson",
}


def family_named(name: str) -> type[LinearPredictorModel]:
    """Return the family of this name."""
    tidy = name.lower().replace("_", "-")
    if tidy not in FAMILIES:
        likely = CALLED_ELSEWHERE.get(tidy)
        hint = suggestion(name, FAMILIES) if likely is None else f" (did you mean {likely!r}?)"
        raise SettingError(
            f"there is no family {name!r}{hint}; the families are {', '.join(FAMILIES)}."
        )
    return FAMILIES[tidy]
