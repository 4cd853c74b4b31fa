"""scikit-learn estimators whose `fit` samples a posterior and keeps it as `posterior_`.

The module needs scikit-learn (`pip install 'modicum[sklearn]'`), which no other module imports.
Sampling warns as `mo.sample` does. Sparse matrices are accepted and converted to a dense array,
so that a fit needs memory for rows times columns floats.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import d2_tweedie_score
from sklearn.utils import Tags, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from modicum.arguments import names_checked
from modicum.diagnostics.weighted import normalised, weighted_mean
from modicum.errors import DataError, NoNoiseError, SettingError, warn_of
from modicum.methods import Method, resolve
from modicum.models import (
    Gaussian,
    LinearPredictorModel,
    Logistic,
    Softmax,
)
from modicum.models.families import PoissonRates, as_family
from modicum.models.families.real import ScaleFamily
from modicum.models.model import BaseModel
from modicum.models.priors.distributions import Prior
from modicum.posterior import Posterior
from modicum.posterior.fitted import thinned
from modicum.posterior.predict import check_finite, to_predict
from modicum.progress import After
from modicum.rows import Rows
from modicum.rows.sources import is_table
from modicum.run.chains import ChainCount
from modicum.sample import RunSettings, draw

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["LinearRegression", "LogisticRegression", "PoissonRegressor", "Regressor"]

Features: TypeAlias = Any  # arrays, sparse matrices, data frames
E = TypeVar("E")
NO_NOISE = 1e-6  # scale of outcomes without noise, in standard deviations of the outcome
PATIENCE = 10.0  # seconds before a fit shows progress
FIRST_ROWS = 10_000  # rows that this standard deviation is computed from


def _names_checked(estimator: type[E]) -> type[E]:
    """Make an estimator explain unknown settings; decorates its dataclass."""
    estimator.__init__ = names_checked(estimator.__init__)  # type: ignore[method-assign]
    return estimator


@_names_checked
@dataclass(kw_only=True, eq=False, repr=False)
class _Estimator(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Base of all estimators: settings, conversion of X and y to rows, and sampling."""

    prior_scale: float | tuple[float, ...] | None = None
    fit_intercept: bool = True
    priors: Mapping[str, Prior] | None = None
    method: str | Method | None = "auto"
    draws: int = 1000
    tune: int | None = None
    chains: ChainCount = 4
    random_state: int | np.random.RandomState | None = None
    progressbar: bool | None = None

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    # Rows ---------------------------------------------------------------------------------

    def _validated(self, X: Features, y: ArrayLike) -> tuple[Features, np.ndarray]:
        """Return validated X and y as arrays; X with categorical columns stays a data frame."""
        if hasattr(X, "infer_objects"):  # pandas: numbers in a column of objects are numbers
            X = X.infer_objects()
        if _categorical_columns(X):
            y = validate_data(self, y=y, **_CHECKS_OF_Y)
            validate_data(self, X, skip_check_array=True)  # last: it sets feature_names_in_
            return X, np.asarray(y)
        X, y = validate_data(self, X, y, **_CHECKS_OF_X, **_CHECKS_OF_Y, ensure_min_samples=2)
        return X, np.asarray(y)

    def _rows(self, X: Features, y: np.ndarray, sample_weight: ArrayLike | None) -> Rows:
        weight = sample_weight
        if weight is not None:
            weight = _check_sample_weight(weight, X, dtype=np.float64, ensure_non_negative=True)
        categorical = _categorical_columns(X)
        if categorical:
            return _rows_from_frame(X, y, weight, categorical)
        names = getattr(self, "feature_names_in_", None)
        columns = None if names is None else [str(name) for name in names]
        return Rows(x=_dense(X), y=y, weight=weight, columns=columns)

    def _rows_like(self, X: Features) -> Features:
        """Return X in a form that `Posterior.predict` encodes as `fit` did, whatever X holds."""
        check_is_fitted(self)
        if not self.posterior_.fit_rows.schema.levels:
            return {"x": _dense(validate_data(self, X, reset=False, **_CHECKS_OF_X))}
        validate_data(self, X, skip_check_array=True, reset=False)
        if not is_table(X):  # in the columns of the fit, of which scikit-learn warns
            import pandas as pd

            X = pd.DataFrame(_dense(X) if sparse.issparse(X) else X, columns=self.feature_names_in_)
        if len(X) == 0:
            raise DataError("X has 0 rows, and scikit-learn's estimators predict at least one.")
        return X

    # Sampling -----------------------------------------------------------------------------

    def _sample(self, family: LinearPredictorModel, rows: Rows) -> Posterior:
        changes: dict[str, Any] = {"intercept": self.fit_intercept}  # to fields of the family
        if self.prior_scale is not None:
            changes["prior_scale"] = self.prior_scale
        if self.priors is not None:
            changes["priors"] = self.priors
        seed = self.random_state
        if seed is not None and not isinstance(seed, int | np.integer):
            seed = int(check_random_state(seed).randint(2**31 - 1))
        settings = RunSettings(
            method=resolve(self.method),
            draws=self.draws,
            tune=self.tune,
            chains=self.chains,
            random_seed=seed,
            progressbar=After(PATIENCE) if self.progressbar is None else self.progressbar,
            # Weighted rows are always sorted: they are then the same as repeated ones.
            collapse="always" if "weight" in rows.fields else True,
        )
        return draw(replace(family, **changes), rows, settings)

    def _expected(self, X: Features) -> np.ndarray:
        """Return the posterior mean of the expected outcomes; intervals would take longer."""
        rows, weights = self._rows_like(X), _weights_of_means(self.posterior_)
        drawn = to_predict(self.posterior_, rows, weights.size)
        pieces = drawn.pieces(drawn.expected)
        mean = np.concatenate([weighted_mean(each[None], weights) for _, (each, _) in pieces])
        check_finite(mean, weights)
        return mean


MEAN_DRAWS = 1_000  # whose mean is within 0.03 posterior sds of that of all draws, at a fair cost
FEW_DRAWS = 250  # that suffice if they are weighted to have the means of all draws
PER_PARAMETER = 12  # fewest draws per parameter for such weights


def _weights_of_means(post: Posterior) -> np.ndarray:
    """Return weights (1, draws) of evenly spaced draws for means of expected outcomes.

    A few draws are weighted such that parameters have the means that they have over all draws
    (Deville and Sarndal 1992), as then have expected outcomes as far as they are linear in the
    parameters. With many parameters some weights would be negative: more draws then count alike.
    """
    means = np.concatenate([np.ravel(post.mean(name)) for name in post.draws])
    draws, equal = thinned(post, max(FEW_DRAWS, PER_PARAMETER * means.size))
    flat = np.concatenate([x.reshape(equal.size, -1) for x in draws.values()], axis=1)
    start = normalised(equal[0])
    centred = flat - start @ flat
    scale = np.maximum(centred.std(axis=0), np.finfo(float).tiny)
    lacking, centred = (means - start @ flat) / scale, centred / scale
    covariance = centred.T @ (start[:, None] * centred)
    weights = start * (1 + centred @ np.linalg.lstsq(covariance, lacking, rcond=1e-9)[0])
    if equal.size >= MEAN_DRAWS or not weights.min() > 0:
        return thinned(post, MEAN_DRAWS)[1]
    return weights[None]


# Keyword arguments of scikit-learn's `validate_data`.
_CHECKS_OF_X: dict[str, Any] = {"accept_sparse": "csr", "dtype": [np.float64, np.float32]}
_CHECKS_OF_Y: dict[str, Any] = {"multi_output": False}


def _categorical_columns(X: Features) -> list[str]:
    """Return the non-numeric columns of a pandas or polars frame."""
    if hasattr(X, "select_dtypes"):  # pandas
        return list(X.select_dtypes(exclude=["number", "bool"]).columns)
    schema = getattr(X, "schema", None)
    if isinstance(schema, Mapping) and hasattr(X, "to_pandas"):  # polars
        return [k for k, v in schema.items() if not (v.is_numeric() or str(v) == "Boolean")]
    return []


def _rows_from_frame(
    X: Features, y: np.ndarray, weight: np.ndarray | None, categorical: list[str]
) -> Rows:
    """Make rows from a frame with categorical columns, coded by treatment contrasts."""
    frame = X if hasattr(X, "select_dtypes") else X.to_pandas()
    if not all(isinstance(name, str) for name in frame.columns):
        raise DataError(
            "a data frame with categorical columns needs column names that are strings, since new "
            "frames are matched by name."
        )
    outcome, weights = _free_name("y", frame), _free_name("sample_weight", frame)
    added = {outcome: y} if weight is None else {outcome: y, weights: weight}
    return Rows.from_table(
        frame.assign(**added),
        outcome=outcome,
        weight=None if weight is None else weights,
        # dates are to be numbers: nobody means an effect of each of them
        categorical=frame[categorical].select_dtypes(exclude=["datetime", "datetimetz"]).columns,
    )


def _free_name(name: str, frame: pd.DataFrame) -> str:
    while name in frame.columns:
        name += "_"
    return name


def _dense(X: Features) -> np.ndarray:
    """Return X as a dense array."""
    return X.toarray() if sparse.issparse(X) else np.asarray(X)


# Regression -------------------------------------------------------------------------------


class _Regression(RegressorMixin, _Estimator):  # type: ignore[misc]
    """Base of the estimators whose outcome is a number."""

    def _family(self) -> LinearPredictorModel:
        raise NotImplementedError

    def fit(self, X: Features, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Draw from the posterior given outcomes `y`; rows count `sample_weight` times."""
        family = self._family()
        X, y = self._validated(X, y)
        rows = self._rows(X, y.astype(float), sample_weight)
        try:
            self.posterior_ = self._sample(family, rows)
        except NoNoiseError:
            self.posterior_ = self._sample(_without_noise(family, rows), rows)
        self.coef_ = np.asarray(self.posterior_.mean("beta"))
        has = "intercept" in self.posterior_.draws
        self.intercept_ = float(self.posterior_.mean("intercept")) if has else 0.0
        return self

    def predict(
        self, X: Features, return_std: bool = False
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Return the posterior mean of the expected outcome, and with `return_std` the sd.

        The latter is the standard deviation of a new outcome, including noise, as in
        scikit-learn's `BayesianRidge`.
        """
        expected = self._expected(X)
        return (expected, self._noise(X)) if return_std else expected

    def _noise(self, X: Features) -> np.ndarray:
        """Return the standard deviation of new outcomes: Var(y) = Var(mean) + E(variance)."""
        drawn = to_predict(self.posterior_, self._rows_like(X))
        weights, variances = drawn.weights, []
        for _, (mean, noise) in drawn.pieces(drawn.moments):
            apart = mean - weighted_mean(mean[None], weights)
            variances.append(weighted_mean((noise + apart**2)[None], weights))
        return np.sqrt(np.concatenate(variances))


@_names_checked
@dataclass(kw_only=True, eq=False, repr=False)
class Regressor(_Regression):
    """Regression with any family whose outcome is a number.

    Parameters
    ----------
    family
        A name ("gaussian", "gamma", "negative-binomial" ...) or a family with settings
        (`mo.models.StudentT(df=3)`).
    prior_scale, priors
        As in the families; None scales the priors to the data.
    fit_intercept
        Whether to add an intercept.
    method, draws, tune, chains
        As in `mo.sample`.
    progressbar
        As in `mo.sample`; by default only fits of more than ten seconds show progress, and say by
        which method they draw.
    random_state
        A seed, a NumPy random state, or None for a new seed at every fit.

    Attributes
    ----------
    posterior_
        The `mo.Posterior`: summaries, intervals, warnings.
    coef_, intercept_
        Posterior means.
    n_features_in_, feature_names_in_
        Number of columns of X in `fit`, and their names.

    Examples
    --------
    >>> import numpy as np
    >>> from modicum.sklearn import Regressor
    >>> rng = np.random.default_rng(1)
    >>> X = rng.normal(size=(300, 2))
    >>> y = 1 + X @ [2.0, -1.0] + 0.1 * rng.normal(size=300)
    >>> fit = Regressor("gaussian", method="nuts", draws=300, tune=300, random_state=1).fit(X, y)
    >>> fit.coef_.round(1)
    array([ 2., -1.])
    """

    family: str | LinearPredictorModel = field(default="gaussian", kw_only=False)

    def _family(self) -> LinearPredictorModel:
        family = as_family(self.family)
        if family is None:
            raise SettingError(
                "family must be a name such as 'gamma', or a family with settings such as "
                f"mo.models.StudentT(df=3), not {self.family!r}."
            )
        name = type(family).__name__
        if type(family).decide is not BaseModel.decide:
            raise SettingError(f"{name} models classes: use LogisticRegression.")
        if family.outcome_fields != ("y",):
            raise SettingError(
                f"{name} needs {' and '.join(family.outcome_fields)} of each row, but fit(X, y) "
                "takes one number per row: use mo.sample or mo.fit."
            )
        return family


def _without_noise(family: LinearPredictorModel, rows: Rows) -> LinearPredictorModel:
    """Return the family with a small fixed scale, for outcomes that the columns fit exactly."""
    assert isinstance(family, ScaleFamily), "only families with a scale raise NoNoiseError"
    y = np.asarray(rows.slice(0, min(len(rows), FIRST_ROWS))["y"], float)
    size = float(f"{np.std(y):.1g}") or abs(float(y[0])) or 1.0
    warn_of(
        "no-noise",
        "the columns give the outcome without noise, so that its scale has no posterior; it "
        f"was taken as {NO_NOISE * size:.2g}, a millionth of the outcome's standard deviation",
        "look for a column that is the outcome in disguise",
        scale=NO_NOISE * size,
    )
    return replace(family, scale=NO_NOISE * size)


class LinearRegression(_Regression):
    """Linear regression with normal noise.

    Takes the parameters of `Regressor` except `family`.

    Examples
    --------
    >>> import numpy as np
    >>> from modicum.sklearn import LinearRegression
    >>> rng = np.random.default_rng(1)
    >>> X = rng.normal(size=(300, 2))
    >>> y = 1 + X @ [2.0, -1.0] + 0.5 * rng.normal(size=300)
    >>> fit = LinearRegression(method="nuts", draws=300, tune=300, random_state=1).fit(X, y)
    >>> mean, std = fit.predict(X[:1], return_std=True)
    >>> std.round(1)
    array([0.5])
    """

    def _family(self) -> LinearPredictorModel:
        return Gaussian()


class PoissonRegressor(_Regression):
    """Poisson regression with log link.

    As in scikit-learn, outcomes may be rates (counts divided by exposures) with the exposures as
    sample weights; the posterior is that of the counts. `score` is the share of deviance explained.
    Takes the parameters of `Regressor` except `family`.

    Examples
    --------
    >>> import numpy as np
    >>> from modicum.sklearn import PoissonRegressor
    >>> rng = np.random.default_rng(1)
    >>> X = rng.normal(size=(300, 1))
    >>> y = rng.poisson(np.exp(0.5 + 0.8 * X[:, 0]))
    >>> fit = PoissonRegressor(method="nuts", draws=300, tune=300, random_state=1).fit(X, y)
    >>> fit.coef_.round(1)
    array([0.8])
    """

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags

    def _family(self) -> LinearPredictorModel:
        return PoissonRates()

    def score(self, X: Features, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Return the share of the Poisson deviance explained (D squared)."""
        return float(d2_tweedie_score(y, self.predict(X), sample_weight=sample_weight, power=1))


# Classes ----------------------------------------------------------------------------------


class LogisticRegression(ClassifierMixin, _Estimator):  # type: ignore[misc]
    """Logistic regression for two classes, softmax regression for more.

    Parameters
    ----------
    prior_scale, priors
        As in the families; None scales the priors to the data.
    fit_intercept
        Whether to add an intercept.
    method, draws, tune, chains
        As in `mo.sample`.
    progressbar
        As in `mo.sample`; by default only fits of more than ten seconds show progress, and say by
        which method they draw.
    random_state
        A seed, a NumPy random state, or None for a new seed at every fit.

    Attributes
    ----------
    posterior_
        The `mo.Posterior`: summaries, intervals, warnings.
    classes_
        Class labels, sorted.
    coef_, intercept_
        Posterior means: one line for two classes; otherwise one per class, with zeros for the last,
        which is the reference.
    n_features_in_, feature_names_in_
        Number of columns of X in `fit`, and their names.

    Examples
    --------
    >>> import numpy as np
    >>> from modicum.sklearn import LogisticRegression
    >>> rng = np.random.default_rng(1)
    >>> X = rng.normal(size=(500, 2))
    >>> y = np.where(rng.random(500) < 1 / (1 + np.exp(-2 * X[:, 0])), "late", "in time")
    >>> fit = LogisticRegression(method="nuts", draws=300, tune=300, random_state=1).fit(X, y)
    >>> fit.classes_, fit.predict(X[:2]).shape
    (array(['in time', 'late'], dtype='<U7'), (2,))
    """

    def fit(self, X: Features, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Draw from the posterior given class labels `y`; rows count `sample_weight` times."""
        X, y = self._validated(X, y)
        try:
            check_classification_targets(y)
            self.classes_, codes = np.unique(y, return_inverse=True)
        except TypeError:  # labels of several types cannot be sorted
            kinds = sorted({type(value).__name__ for value in np.asarray(y, object)})
            raise DataError(
                f"the classes have several types ({', '.join(kinds)}): make them all strings or "
                "all numbers, and leave out rows whose class is missing."
            ) from None
        count = len(self.classes_)
        if count < 2:
            raise DataError(
                "LogisticRegression needs outcomes of at least two classes, but all of these are "
                f"of class {self.classes_.tolist()[0]!r}."
            )
        family: LinearPredictorModel = Logistic() if count == 2 else Softmax(classes=count)
        post = self._sample(family, self._rows(X, codes.astype(float), sample_weight))
        beta = np.atleast_2d(post.mean("beta"))
        intercept = np.zeros(len(beta))
        if "intercept" in post.draws:
            intercept = np.atleast_1d(post.mean("intercept"))
        if count > 2:  # add the reference class
            beta, intercept = np.r_[beta, np.zeros((1, beta.shape[1]))], np.r_[intercept, 0.0]
        self.posterior_, self.coef_, self.intercept_ = post, beta, intercept
        return self

    def predict_proba(self, X: Features) -> np.ndarray:
        """Return the posterior mean probability of each class, in the order of `classes_`."""
        chance = self._expected(X)
        return chance if chance.ndim == 2 else np.c_[1 - chance, chance]

    def predict_log_proba(self, X: Features) -> np.ndarray:
        """Return the logarithm of `predict_proba`."""
        return np.log(self.predict_proba(X))

    def predict(self, X: Features) -> np.ndarray:
        """Return the most probable class of each row."""
        return np.asarray(self.classes_[np.argmax(self.predict_proba(X), axis=1)])
