"""One chain to thousands on an accelerator: HMC-ECS, signed, SGHMC, and HMC on all rows beside.

    python -m modicum_lab.bench.parts.gpu [--rows 10500000] [--chains 1 32 1024 8192] [--draws 1000]
    python -m modicum_lab.bench.parts.gpu --rows 100000 --chains 1 8 --draws 200  # on a CPU

Every chain's means and sds are compared with those of all chains together, and these with a
reference that reads every row. The share of the card's limits says how far the time of an
iteration is from what memory and arithmetic would allow: a row evaluation reads d numbers and does
4 d + 30 operations (a product forward, one back, a link function). `make bench` leaves it out.
"""

import argparse
import json
import time
import warnings

import jax
import numpy as np
from scipy.special import ndtri

import modicum as mo
from modicum.diagnostics import batch_means_inefficiency
from modicum.posterior.weighted import influence
from modicum_lab.bench.references import by_importance
from modicum_lab.bench.stand_ins import plain
from modicum_lab.bench.tables import Table, verdict

METHODS = {
    "perturbed": (mo.HMCECS, 1),
    "signed": (mo.SignedHMCECS, 1),
    "sghmc-cv": (mo.SGHMCCV, 10),  # one position in ten is kept
}
GOAL = 1_500_000  # effective draws a second, perturbed, with 1,024 chains or more
MANY = 256  # chains from which their spread counts effective draws
TOGETHER = 256  # chains whose moments are taken at once
COLUMNS = [
    "method",
    "precision",
    "chains",
    "ESS a second",
    "us an iteration",
    "s in all",
    "mean off, sd",
    "sd off, %",
    "worst chain, se",
    "chains right",
    "bandwidth, %",
    "arithmetic, %",
]


def measure(table, method, thin, chains, draws, tune):
    """Sample, and return the posterior with the seconds in all."""
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mo.ModicumWarning)  # what was said is printed below
        post = mo.sample(
            table.model,
            table.rows,
            method=method,
            draws=draws,
            tune=tune,
            thin=thin,
            chains=chains,
            random_seed=1,
            progressbar=False,
            parallel="stacked",
        )
    return post, time.perf_counter() - started


def moments(post):
    """Mean and sd of every chain, (chain, d), and the same of all chains together."""
    parts = []
    for first in range(0, post.chains, TOGETHER):
        some = slice(first, first + TOGETHER)
        x = np.concatenate([post["beta"][some], post["intercept"][some][..., None]], axis=2)
        w = np.ones(x.shape[:2]) if post.weights is None else post.weights[some]
        w = w[..., None]
        parts.append(((w * x).sum(1), (w * x**2).sum(1), w.sum(1)))
    first, second, weight = (np.concatenate(group) for group in zip(*parts, strict=True))

    def of(first, second, weight):
        mean = first / weight
        with np.errstate(invalid="ignore"):  # signs can make a short chain's variance negative
            return mean, np.sqrt(second / weight - mean**2)

    return of(first, second, weight), of(first.sum(0), second.sum(0), weight.sum(0))


def effective(post, means, sd):
    """Effective draws of all chains together, a number a parameter.

    Many independent chains: Var(chain mean) = sd^2 / ESS of a chain, whatever the autocorrelation.
    """
    if post.chains >= MANY:
        return post.chains * sd**2 / means.var(0, ddof=1)
    x = np.concatenate([post["beta"], post["intercept"][..., None]], axis=2)
    total = x.shape[0] * x.shape[1]
    if post.weights is None:
        return total / batch_means_inefficiency(x)
    series = influence(x, post.weights)
    return total * sd**2 / (series.var((0, 1)) * batch_means_inefficiency(series))


def worst_chain(chains, together, ess, number):
    """The largest distance of a chain's mean or sd from all chains', in its standard errors."""
    (mean, sd), (all_mean, all_sd) = chains, together
    error = all_sd / np.sqrt(ess / number)
    off = np.abs(mean - all_mean) / error
    if number < MANY:
        return float(off.max()), off.size
    spread = sd / all_sd
    width = np.nanstd(spread, axis=0)
    off_sd = np.abs(spread - np.nanmean(spread, axis=0)) / width
    return float(np.nanmax([off.max(), np.nanmax(off_sd)])), 2 * off.size


def shares(post, seconds, precision, shared, given):
    """Least time by bytes and by operations, each over the time it took."""
    d = post["beta"].shape[2] + 1
    size = 8 if precision == "float64" else 4
    rows = float(post.stats["rows_touched"].mean())  # of an iteration of a chain
    # on all rows, one read of a row (in float32) serves all chains
    read = rows * d * (4 if shared else size * post.chains)
    operations = rows * post.chains * (4 * d + 30)
    peak = given.float64 if precision == "float64" else given.float32
    return read / (given.bandwidth * 1e12) / seconds, operations / (peak * 1e12) / seconds


def line(table, reference, name, precision, thin, chains, given, method, draws, tune):
    """One row of the table, and what a program would want to know."""
    post, total = measure(table, method, thin, chains, draws, tune)
    each, together = moments(post)
    ess = effective(post, each[0], together[1])
    worst, compared = worst_chain(each, together, ess, chains)
    # the t-like tails of an estimated error are allowed for by a wider bound
    right = worst < 1.5 * -ndtri(1e-3 / (2 * compared))
    sampling = post.settings["sampling_seconds"]
    unit = np.array(reference.sd)
    mean_off = float(np.max(np.abs(together[0] - reference.mean) / unit))
    sd_off = float(np.max(np.abs(together[1] / unit - 1)))
    a_draw = sampling / draws
    bandwidth, arithmetic = shares(post, a_draw, precision, name == "hmc, all rows", given)
    rate = float(ess.min()) / sampling
    print(json.dumps({"method": name, "chains": chains, "precision": precision, "rate": rate,
                      "tuning": {k: v["value"] for k, v in post.tuning.items()
                                 if isinstance(v, dict) and "value" in v},
                      "warnings": post.warnings}, default=str), flush=True)  # fmt: skip
    row = [name, precision, chains, rate, 1e6 * a_draw / thin, total, mean_off, 100 * sd_off]
    return [*row, worst, "yes" if right else "NO", 100 * bandwidth, 100 * arithmetic]


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=10_500_000)
    parser.add_argument("--chains", type=int, nargs="+", default=[1, 32, 1024, 8192])
    parser.add_argument("--hmc-chains", type=int, nargs="*", default=[1, 32])
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--hmc-draws", type=int, default=200)
    parser.add_argument("--tune", type=int, default=200)
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--precision", nargs="+", default=["float64", "float32"])
    parser.add_argument("--bandwidth", type=float, default=4.8, help="of the card, TB/s")
    parser.add_argument("--float64", type=float, default=34.0, help="of the card, TFLOP/s")
    parser.add_argument("--float32", type=float, default=67.0, help="of the card, TFLOP/s")
    return parser.parse_args()


def main():
    given = arguments()
    table = plain(given.rows)
    reference = by_importance(table.model, table.rows)
    device = jax.devices()[0].device_kind
    title = (
        f"{device}: logistic regression, {given.rows:,} rows, {len(table.columns) + 1} parameters"
    )
    note = f"Reference: {reference.source}; its error is at most {reference.largest_error:.2g} sd."
    report, limits = (
        Table(title, COLUMNS, note=note),
        Table("Limit", ["what", "ESS a second", "at least", "kept"]),
    )
    for name in given.methods:
        maker, thin = METHODS[name]
        for precision in given.precision:
            for chains in given.chains:
                method = maker(precision=precision)
                row = line(
                    table,
                    reference,
                    name,
                    precision,
                    thin,
                    chains,
                    given,
                    method,
                    given.draws,
                    given.tune,
                )
                report.rows.append(row)
                if name == "perturbed" and chains >= 1024:
                    kept = [f"{chains:,} chains, {precision}", row[3], GOAL, verdict(GOAL, row[3])]
                    limits.rows.append(kept)
    for chains in given.hmc_chains:
        row = line(
            table,
            reference,
            "hmc, all rows",
            "float64",
            1,
            chains,
            given,
            mo.HMC(),
            given.hmc_draws,
            100,
        )
        report.rows.append(row)
    print(report.markdown())
    if limits.rows:
        print(limits.markdown())


if __name__ == "__main__":
    main()
