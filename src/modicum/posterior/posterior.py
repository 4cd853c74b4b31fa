"""The result of a run: draws, their cost, and reasons to doubt them.

Each question that can be asked of a fit is a function of it in a file of its own, and a method of
`Posterior`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from modicum.arguments import arguments_checked
from modicum.errors import SettingError, count
from modicum.models.model import BaseModel
from modicum.models.over_draws import ModelPredictor
from modicum.models.own import Model
from modicum.posterior import archive
from modicum.posterior.archive import save, to_datatree, to_netcdf, weight_name
from modicum.posterior.display import posterior_box, posterior_text
from modicum.posterior.evidence import log_evidence
from modicum.posterior.exactness import correct, sensitivity, stein_discrepancy
from modicum.posterior.fit_rows import RowsLike
from modicum.posterior.fitted import FittedDraws, resample
from modicum.posterior.group_effects import effects, icc
from modicum.posterior.loo import loo
from modicum.posterior.marginal import contrast, marginal
from modicum.posterior.outcomes import predictive
from modicum.posterior.ppc import ppc
from modicum.posterior.predict import bayes_R2, predict, score
from modicum.posterior.refit import kfold, update
from modicum.posterior.report import report
from modicum.posterior.summary import hypothesis, learning_curve, summary

DRAWS = 'post.draws, name to array (chain, draw, ...), or post["beta"]'
# Attributes that posteriors have in brms, rstanarm, lme4, PyMC, bambi, CmdStanPy, NumPyro,
# scikit-learn and statsmodels, and what to use here instead.
INSTEAD_OF = {
    "fixef coef coef_ params": 'post.summary("beta"), or post["beta"] for the draws',
    "intercept_": 'post.mean("intercept")',
    "bse": 'post.sd("beta")',
    "conf_int": "post.summary(prob=0.95)",
    "print_summary": "print(post.summary())",
    "VarCorr": 'post.summary(["group_sd", "group_cor"])',
    "ranef": "post.effects(group)",
    "as_draws_df get_samples samples stan_variable stan_variables": DRAWS,
    "posterior": f"{DRAWS}, or post.to_datatree()",
    "to_inference_data to_arviz to_inferencedata idata": "post.to_datatree()",
    "posterior_epred get_prediction": "post.predict(table)",
    "predict_proba": "post.predict(table).mean",
    "posterior_predict sample_posterior_predictive posterior_predictive": "post.predictive(table)",
    "prior_predictive": "post.predictive(table, prior=True)",
    "conditional_effects": "post.marginal(column), and plots.effect",
    "pp_check": "post.ppc()",
    "resid": 'post.ppc(by="column")',
    "waic": "post.loo()",
    "bridge_sampler": "post.log_evidence()",
    "prior_summary": 'post.tuning["priors"]',
    "plot_trace": "arviz_plots.plot_trace(post.to_datatree())",
    "plot": "modicum.plots, such as plots.forest(post)",
}
INSTEAD = {name: text for names, text in INSTEAD_OF.items() for name in names.split()}


@dataclass(repr=False, eq=False)
class Posterior(FittedDraws):
    """Draws from a posterior, with their signs or weights, their cost and their warnings.

    Every estimate uses the importance weights, or the signs of a signed sampler.

    Parameters
    ----------
    draws
        Arrays (chain, draw, *shape) by parameter name.
    stats
        Arrays (chain, draw) under ArviZ's names: ``acceptance_rate``, ``diverging`` ...
    ledger
        Count of the row evaluations.
    labels
        By parameter name, one sequence of labels (or ``None``) for each axis of its shape.
    weights
        Sign or importance weight of each draw (chain, draw); ``None`` if all are equal.
    warnings
        The reasons to doubt these draws, each a `ModicumWarning`; they print as sentences.
    tuning
        Settings that were chosen by the sampler, each with an explanation.
    settings
        Method, seed, number of rows, wall time, versions.
    predictor
        The predictions of the model that was fitted, as a ``ModelPredictor``. A custom model is
        not saved with the posterior.
    fit_rows
        Names, levels, reference levels and fingerprint of the rows of the fit, with which other
        rows are compared; with ``None``, rows are taken as they are.
    rows
        The rows of the fit, from which checks and effects are computed. They are not saved, but
        `load` takes them.
    table
        The table from which `mo.fit` made the rows; not saved either.
    rerun
        How to sample again, for `update` and `kfold`; not saved either.

    Examples
    --------
    >>> import numpy as np, modicum as mo
    >>> rng = np.random.default_rng(1)
    >>> draws = {"beta": rng.normal([1.0, 2.0], 0.1, size=(4, 250, 2))}
    >>> post = mo.Posterior(draws, {}, mo.Ledger(rows=1_000), labels={"beta": ("age", "income")})
    >>> post
    <Posterior: 4 chains of 250 draws; beta (2,); 0.0 passes over 1,000 rows>
    >>> post.summary()[["mean", "sd"]].round(1)
                  mean   sd
    beta[age]      1.0  0.1
    beta[income]   2.0  0.1
    """

    # what the draws say
    summary = arguments_checked(summary)
    hypothesis = arguments_checked(hypothesis)
    learning_curve = arguments_checked(learning_curve)
    resample = arguments_checked(resample)
    _repr_html_ = posterior_box
    __str__ = posterior_text

    # outcomes, and the effects of columns and groups on them
    predict = arguments_checked(predict)
    predictive = arguments_checked(predictive)
    score = arguments_checked(score)
    marginal = arguments_checked(marginal)
    contrast = arguments_checked(contrast)
    effects = arguments_checked(effects)
    icc = arguments_checked(icc)

    # how far the model, the prior and the draws can be trusted
    ppc = arguments_checked(ppc)
    kfold = arguments_checked(kfold)
    bayes_R2 = arguments_checked(bayes_R2)  # noqa: N815 - as brms calls it
    loo = arguments_checked(loo)
    log_evidence = arguments_checked(log_evidence)
    sensitivity = arguments_checked(sensitivity)
    stein_discrepancy = arguments_checked(stein_discrepancy)
    correct = arguments_checked(correct)

    update = update

    # for people, ArviZ and later
    report = arguments_checked(report)
    to_datatree = arguments_checked(to_datatree)
    to_netcdf = arguments_checked(to_netcdf)
    save = arguments_checked(save)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        model: BaseModel | None = None,
        data: RowsLike | None = None,
    ) -> Posterior:
        """Load a posterior that `save` wrote; any other file, or a damaged one, is a `DataError`.

        Parameters
        ----------
        path
            The file.
        model
            The model, if it is a custom one: a file keeps only Modicum's own models.
        data
            The rows of the fit, or their table, which a file does not keep: checks, comparisons,
            reports and integrated effects need them. Other rows are refused.
        """
        post = archive.load(path, cls)
        if model is not None:
            if not isinstance(model, BaseModel):
                raise SettingError(
                    f"model must be a model such as mo.Model(...), not {type(model).__name__}."
                )
            if post.predictor_spec is not None:
                raise SettingError("the file holds the model of this posterior: leave `model` out.")
            if isinstance(model, Model):
                kinds = {} if post.fit_rows is None else post.fit_rows.schema.kinds
                shapes = {name: x.shape[2:] for name, x in post.draws.items()}
                model = model.of_draws(shapes, kinds)  # refuses one with other parameters
            post.predictor = ModelPredictor(model)
        if data is not None:
            post.take_rows(data)
        return post

    if not TYPE_CHECKING:  # so that type checkers still find misspelt names

        def __getattr__(self, name: str) -> None:
            """Raise an error that translates names used by other libraries."""
            hint = f": use {INSTEAD[name]}" if name in INSTEAD else ""
            raise AttributeError(
                f"a posterior has no attribute {name!r}{hint}.", name=name, obj=self
            )

    def __repr__(self) -> str:
        names = ", ".join(f"{k} {v.shape[2:]}" if v.ndim > 2 else k for k, v in self.draws.items())
        parts = [self.drawn, names]
        weights = self.unequal_weights
        if weights is not None:
            parts.append(f"mean {weight_name(weights)} {weights.mean():.3g}")
        parts.append(f"{self.ledger.passes:,.1f} passes over {self.ledger.data}")
        if self.warnings:
            parts.append(count(len(self.warnings), "warning"))
        method = f" {self.settings['method']}" if "method" in self.settings else ""
        return f"<Posterior{method}: {'; '.join(parts)}>"
