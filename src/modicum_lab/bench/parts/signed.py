"""What exactness costs: computational time of signed over perturbed HMC-ECS.

CT = IF x rows evaluated a draw / (mean sign)^2, a number a parameter (eqs. 3.2 and 5.4 of the
HMC-ECS paper), on a problem with the shape of HIGGS: 29 coefficients, a million rows. The paper's
Table 1 has a median of 1.15 for the ratio, with uniform rows, m = 1,300 and lambda = 100.
"""

import time

import numpy as np

from modicum_lab.bench.process import in_process
from modicum_lab.bench.stand_ins import plain
from modicum_lab.bench.tables import Table

SETTINGS = {
    "as in the paper": (
        'HMCECS(design="uniform", subsample=1300, blocks=100, refreshes=1)',
        'SignedHMCECS(design="uniform", products=100, blocks=100, refreshes=1)',
    ),
    "weighted rows, by default": ("HMCECS()", "SignedHMCECS()"),
    "weighted rows, small mini-batches": ("HMCECS()", "SignedHMCECS(batch=None)"),
}


def measured(n, draws, settings):
    """Computational time a parameter, with what it is made of."""
    import modicum as mo
    from modicum.diagnostics import computational_time, inefficiency
    from modicum.posterior.weighted import influence

    table = plain(n)
    started = time.perf_counter()
    post = mo.sample(
        table.model,
        table.rows,
        method=eval(f"mo.{settings}"),
        draws=draws,
        tune=500,
        chains=2,
        random_seed=1,
        progressbar=False,
    )
    beta = np.concatenate([post["beta"], post["intercept"][..., None]], axis=2)
    sign = 1.0 if post.weights is None else float(post.weights.mean())
    if post.weighted:
        beta = influence(beta, post.weights)
    factor = np.mean([inefficiency(chain) for chain in beta], axis=0)
    rows = float(post.stats["rows_touched"].mean())
    return {
        "time": np.asarray(computational_time(factor, rows, sign)).tolist(),
        "inefficiency": float(np.median(factor)),
        "rows": rows,
        "an evaluation": float(np.mean(post.stats["rows_touched"] / (post.stats["n_steps"] + 2))),
        "sign": sign,
        "accepted": float(post.stats["acceptance_rate_u"].mean()),
        "seconds": time.perf_counter() - started,
        "warnings": len(post.warnings),
    }


def run(quick=False):
    n, draws = (100_000, 500) if quick else (1_000_000, 4_000)
    kept = Table(
        f"Signed and perturbed HMC-ECS, n = {n:,}, 29 parameters",
        ["rows drawn", "method", "rows an evaluation", "accepted u", "mean sign", "median IF", "s"],
    )
    ratios = Table(
        "Computational time, signed over perturbed (the paper's Table 1 has a median of 1.15)",
        ["rows drawn", "median", "least", "largest"],
    )
    for name, pair in SETTINGS.items():
        found = [
            in_process("modicum_lab.bench.parts.signed", "measured", n, draws, text)
            for text in pair
        ]
        for method, f in zip(("perturbed", "signed"), found, strict=True):
            told = (f["an evaluation"], f["accepted"], f["sign"], f["inefficiency"], f["seconds"])
            kept.rows.append([name, method, *told])
        ratio = np.divide(found[1]["time"], found[0]["time"])
        ratios.rows.append([name, *(float(q(ratio)) for q in (np.median, np.min, np.max))])
    return [kept, ratios]
