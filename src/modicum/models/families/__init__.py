"""The linear-predictor families, one kind of outcome per file, and their names."""

from dataclasses import fields

from modicum.errors import SettingError, suggestion
from modicum.models.families.classes import (
    AdjacentCategory,
    Multinomial,
    Ordinal,
    Softmax,
    StoppingRatio,
)
from modicum.models.families.counts import NegativeBinomial, Poisson, PoissonRates
from modicum.models.families.positive import (
    Exponential,
    Gamma,
    InverseGaussian,
    Loglogistic,
    Lognormal,
    Weibull,
)
from modicum.models.families.proportions import (
    Beta,
    BetaBinomial,
    Binomial,
    Cloglog,
    Logistic,
    Probit,
    ZeroOneInflatedBeta,
)
from modicum.models.families.real import (
    AsymmetricLaplace,
    Gaussian,
    GaussianLog,
    SkewNormal,
    StudentT,
    VonMises,
)
from modicum.models.families.zeros import (
    HurdleGamma,
    HurdleLognormal,
    HurdleNegativeBinomial,
    HurdlePoisson,
    Tweedie,
    ZeroInflatedNegativeBinomial,
    ZeroInflatedPoisson,
)
from modicum.models.linear_predictor import LinearPredictorModel
from modicum.models.priors.distributions import hyphenated

__all__ = [
    "AdjacentCategory",
    "AsymmetricLaplace",
    "Beta",
    "BetaBinomial",
    "Binomial",
    "Cloglog",
    "Exponential",
    "Gamma",
    "Gaussian",
    "GaussianLog",
    "HurdleGamma",
    "HurdleLognormal",
    "HurdleNegativeBinomial",
    "HurdlePoisson",
    "InverseGaussian",
    "Logistic",
    "Loglogistic",
    "Lognormal",
    "Multinomial",
    "NegativeBinomial",
    "Ordinal",
    "Poisson",
    "PoissonRates",
    "Probit",
    "SkewNormal",
    "Softmax",
    "StoppingRatio",
    "StudentT",
    "Tweedie",
    "VonMises",
    "Weibull",
    "ZeroInflatedNegativeBinomial",
    "ZeroInflatedPoisson",
    "ZeroOneInflatedBeta",
]

# The families by their names in `mo.fit`, scikit-learn's `Regressor` and the command line; the
# posterior of a family listed here is saved with its model.
FAMILIES: dict[str, type[LinearPredictorModel]] = {
    hyphenated(kind): kind
    for kind in (
        *(Logistic, Gaussian, GaussianLog, Poisson, StudentT, Softmax, Multinomial),
        *(Probit, Cloglog),
        *(Binomial, BetaBinomial, Beta, ZeroOneInflatedBeta, NegativeBinomial),
        *(ZeroInflatedPoisson, ZeroInflatedNegativeBinomial, HurdlePoisson),
        *(HurdleNegativeBinomial, Gamma, InverseGaussian, Lognormal, HurdleGamma),
        *(HurdleLognormal, Tweedie, Ordinal, StoppingRatio, AdjacentCategory, Exponential),
        *(Weibull, Loglogistic, AsymmetricLaplace, SkewNormal, VonMises),
    )
}

# What other libraries call our families: names that work too, like ours in letters alone.
CALLED_ELSEWHERE = {
    "bernoulli": "logistic",
    "logit": "logistic",
    "normal": "gaussian",
    "student": "student-t",
    "t": "student-t",
    "categorical": "softmax",
    "cumulative": "ordinal",
    "sratio": "stopping-ratio",
    "cratio": "stopping-ratio",  # the same, as the logistic distribution is symmetric
    "acat": "adjacent-category",
    "negbinomial": "negative-binomial",
    "zeroinflatednegbinomial": "zero-inflated-negative-binomial",
    "hurdlenegbinomial": "hurdle-negative-binomial",
    "tw": "tweedie",
    "asymlaplace": "asymmetric-laplace",
    "zip": "zero-inflated-poisson",
    "zinb": "zero-inflated-negative-binomial",
}
# Families that are asked for and that we do not have, and why.
IDENTITY = (
    "with an identity link the mean is x @ beta, which must be positive in every row, so that the "
    "coefficients have a boundary that depends on the data; use {0!r}, whose link is the logarithm "
    "and whose effects multiply the mean, or 'gaussian' for effects that add up"
)
OWN = "write its likelihood as a function of JAX (mo.Model), or for NumPyro (mo.from_numpyro)"
REFUSED = {
    **{f"{name}identity": IDENTITY.format(name) for name in ("poisson", "gamma")},
    **dict.fromkeys(("geometric", "negbinomial2"), "use 'negative-binomial'"),
    **dict.fromkeys(
        ("compoisson", "genpoisson", "quasipoisson", "discreteweibull"),
        "use 'negative-binomial' for counts that vary more than Poisson's; for those that vary "
        f"less, {OWN}",
    ),
    "zeroinflatedbeta": "use 'zero-one-inflated-beta', which has both edges",
    "shiftedlognormal": "use 'lognormal' for y - shift, with a shift that is known",
    "exgaussian": "use 'skew-normal' or 'lognormal' for outcomes with one long tail",
    "cratiocloglog": "with this link 'stopping-ratio' is another model, so " + OWN,
    "cauchit": "use 'logistic', 'probit' or 'cloglog'",
    "cox": "use 'weibull' for the times, or 'poisson' for the events of short intervals",
    **dict.fromkeys(
        (
            "wiener",
            "mixture",
            "dirichlet",
            "logisticnormal",
            "frechet",
            "genextremevalue",
            "zeroinflatedbinomial",
            "zeroinflatedbetabinomial",
            "hurdlecumulative",
            "customfamily",
        ),
        OWN,
    ),
}
# Names that may mean another model than our family.
PERHAPS = {"linear": "gaussian", "quantile": "asymmetric-laplace"}


def terms_by_class(family: object) -> str | None:
    """Return the predictor whose terms each class of a family, or its name, has for itself."""
    kind = family_named(family) if isinstance(family, str) else family
    return getattr(kind, "terms_by_class", None)


def as_family(family: object) -> LinearPredictorModel | None:
    """Return the family of this name, of this class or with these settings; None if it is none."""
    kind = family_named(family) if isinstance(family, str) else family
    if isinstance(kind, type) and issubclass(kind, LinearPredictorModel):
        return kind()
    return kind if isinstance(kind, LinearPredictorModel) else None


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))


def family_named(name: str) -> type[LinearPredictorModel]:
    """Return the family of this name, ours or another library's.

    Examples
    --------
    >>> family_named("zero_inflated_poisson").__name__, family_named("bernoulli").__name__
    ('ZeroInflatedPoisson', 'Logistic')
    """
    base, bracket, inside = name.partition("(")
    link = _letters(inside.partition("=")[2] or inside)
    letters = _letters(base) + link
    ours = {one.replace("-", ""): one for one in FAMILIES}
    found = ours.get(letters) or CALLED_ELSEWHERE.get(letters)
    refused = next((REFUSED[a] for a in (letters, _letters(base), link) if a in REFUSED), None)
    if found is None and refused is not None:
        raise SettingError(f"there is no family {name!r}: {refused}.")
    if found is None and bracket:
        kind = family_named(base)
        remedy = f"write {base!r} without brackets, since its link is the only one"
        if "link" in {field.name for field in fields(kind)}:
            remedy = f"a link is a setting, as in mo.models.{kind.__name__}(link='probit')"
        elif link in ours:
            remedy = f"use {link!r}"
        raise SettingError(f"there is no family {name!r}: {remedy}.")
    if found is None:
        likely = PERHAPS.get(letters)
        hint = suggestion(name, FAMILIES) if likely is None else f" (did you mean {likely!r}?)"
        raise SettingError(
            f"there is no family {name!r}{hint}; the families are {', '.join(FAMILIES)}."
        )
    return FAMILIES[found]
