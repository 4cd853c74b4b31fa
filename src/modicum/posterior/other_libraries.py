"""Attributes that posteriors have in other libraries, and what to use here instead."""

from __future__ import annotations

SUMMARY = 'post.summary("beta"), or post["beta"] for the draws'
DRAWS = 'post.draws, name to array (chain, draw, ...), or post["beta"]'
DATATREE = "post.to_datatree()"

INSTEAD = {
    # brms, rstanarm, lme4
    "fixef": SUMMARY,
    "ranef": "post.effects(group)",
    "VarCorr": 'post.summary(["group_sd", "group_cor"])',
    "coef": SUMMARY,
    "hypothesis": "the draws: (post['beta[a]'] > post['beta[b]']).mean(), or post.contrast(column)",
    "conditional_effects": "post.marginal(column), and plots.effect",
    "pp_check": "post.ppc()",
    "posterior_predict": "post.predictive(table)",
    "posterior_epred": "post.predict(table)",
    "as_draws_df": DRAWS,
    "waic": "post.loo()",
    "bridge_sampler": "post.log_evidence()",
    "prior_summary": 'post.tuning["priors"]',
    # PyMC, bambi, CmdStanPy, NumPyro
    "posterior": DRAWS + ", or " + DATATREE,
    "sample_posterior_predictive": "post.predictive(table)",
    "posterior_predictive": "post.predictive(table)",
    "prior_predictive": "post.predictive(table, prior=True)",
    "to_inference_data": DATATREE,
    "to_arviz": DATATREE,
    "to_inferencedata": DATATREE,
    "idata": DATATREE,
    "get_samples": DRAWS,
    "samples": DRAWS,
    "stan_variable": DRAWS,
    "stan_variables": DRAWS,
    "print_summary": "print(post.summary())",
    "plot_trace": "arviz_plots.plot_trace(" + DATATREE + ")",
    "plot": "modicum.plots, such as plots.forest(post)",
    # scikit-learn, statsmodels
    "params": SUMMARY,
    "coef_": SUMMARY,
    "intercept_": 'post.mean("intercept")',
    "bse": 'post.sd("beta")',
    "conf_int": "post.summary(prob=0.95)",
    "predict_proba": "post.predict(table).mean",
    "get_prediction": "post.predict(table)",
    "resid": 'post.ppc(by="column")',
}


def missing_attribute(name: str) -> str:
    """Return the error about a missing attribute, with Modicum's name for it if there is one."""
    hint = f": use {INSTEAD[name]}" if name in INSTEAD else ""
    return f"a posterior has no attribute {name!r}{hint}."
