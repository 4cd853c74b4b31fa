"""posteriordb's small models: NUTS compared with NumPyro's, and the default with reference draws.

NUTS is compared by effective draws per gradient, so that neither the machine nor compilation
matters. Every model is one NumPyro function that both libraries sample, Modicum through
`mo.from_numpyro`. Both warm up for 1,000 iterations with a target acceptance of .8. Data are those
of posteriordb, from a checkout's `modicum_lab/tests/validation/posteriordb.json`, which also has
moments of the reference draws.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

import modicum as mo
from modicum.diagnostics import ess, mcse
from modicum_lab.bench.tables import Table

DATA = Path("src/modicum_lab/tests/validation/posteriordb.json")
TUNE, DRAWS, CHAINS = 1_000, 2_000, 4
Fields = dict[str, np.ndarray]


class Case(NamedTuple):
    """A NumPyro model, and the fields of its rows."""

    model: Callable[..., None]
    fields: Fields


def regression(x: Any, y: Any) -> None:
    """Linear regression with a normal outcome, and priors as wide as the database's."""
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    beta = numpyro.sample("beta", dist.Normal(jnp.zeros(x.shape[1]), 1e3).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(2.5))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("obs", dist.Normal(x @ beta, sigma), obs=y)


def eight_schools(y: Any, sigma: Any, school: Any) -> None:
    """Rubin's eight schools, with non-centred effects."""
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    z = numpyro.sample("z", dist.Normal(jnp.zeros(8), 1.0).to_event(1))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("obs", dist.Normal(mu + tau * z[school], sigma), obs=y)


def mixture(y: Any) -> None:
    """Mixture of two normals with ordered means."""
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    free = dist.Normal(jnp.zeros(2), 2.0).to_event(1)
    ordered = dist.TransformedDistribution(free, dist.transforms.OrderedTransform())
    mu = numpyro.sample("mu", ordered)
    sigma = numpyro.sample("sigma", dist.HalfNormal(2.0 * jnp.ones(2)).to_event(1))
    share = numpyro.sample("share", dist.Beta(5.0, 5.0))
    with numpyro.plate("rows", y.shape[0]):
        which = dist.Categorical(probs=jnp.stack([share, 1 - share]))
        numpyro.sample("obs", dist.MixtureSameFamily(which, dist.Normal(mu, sigma)), obs=y)


def cases(data: Mapping[str, Any]) -> dict[str, Case]:
    """Return eight posteriors, by their names in the database."""

    def of(name: str) -> dict[str, Any]:
        shared = data[name]["data"]
        return dict(data[shared]["data"] if isinstance(shared, str) else shared)

    def columns(values: Mapping[str, Any], *names: str) -> np.ndarray:
        return np.stack([np.ones(values["N"]), *(np.asarray(values[k], float) for k in names)], 1)

    kids, plants, voters = (of(k) for k in ("kidiq-kidscore_interaction", "mesquite-mesquite",
                                            "nes2000-nes"))  # fmt: skip
    schools, humps = (
        of("eight_schools-eight_schools_noncentered"),
        of("low_dim_gauss_mix-low_dim_gauss_mix"),
    )
    lags, series = of("arK-arK")["K"], np.asarray(of("arK-arK")["y"])
    before = [series[lags - k - 1 : len(series) - k - 1] for k in range(lags)]
    score = np.asarray(kids["kid_score"], float)
    interaction = columns(kids, "mom_hs", "mom_iq")
    interaction = np.c_[interaction, interaction[:, 1] * interaction[:, 2]]
    volume = sum(np.log(plants[k]) for k in ("diam1", "diam2", "canopy_height"))
    weight = np.log(plants["weight"])
    logs = [np.log(plants[k]) for k in ("diam1", "diam2", "canopy_height", "total_height")]
    party = columns(voters, "real_ideo", "race_adj", "educ1", "gender", "income")

    def normal(x: np.ndarray, y: ArrayLike) -> Case:
        return Case(regression, {"x": x, "y": np.asarray(y, float)})

    return {
        "eight_schools-eight_schools_noncentered": Case(
            eight_schools,
            {"y": np.asarray(schools["y"], float), "sigma": np.asarray(schools["sigma"], float),
             "school": np.arange(8)},
        ),
        "low_dim_gauss_mix-low_dim_gauss_mix": Case(mixture, {"y": np.asarray(humps["y"])}),
        "kidiq-kidscore_momiq": normal(columns(kids, "mom_iq"), score),
        "kidiq-kidscore_interaction": normal(interaction, score),
        "mesquite-logmesquite_logvolume": normal(np.c_[np.ones(len(weight)), volume], weight),
        "mesquite-logmesquite": normal(np.c_[np.ones(len(weight)), np.stack(logs, 1)], weight),
        "arK-arK": normal(np.c_[np.ones(len(before[0])), np.stack(before, 1)], series[lags:]),
        "nes2000-nes": normal(party, voters["partyid7"]),
    }  # fmt: skip


def least(draws: Mapping[str, np.ndarray]) -> float:
    """Return the effective draws of the worst scalar."""
    return min(float(np.min(ess(v.reshape(*v.shape[:2], -1)))) for v in draws.values())


def by_modicum(case: Case, draws: int = DRAWS, seed: int = 1) -> tuple[float, float]:
    """Return Modicum's effective draws per gradient, and its acceptance rate."""
    rows = mo.Rows(**case.fields)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mo.ModicumWarning)
        post = mo.sample(
            mo.from_numpyro(case.model, rows), rows, method="nuts", draws=draws, tune=TUNE,
            chains=CHAINS, random_seed=seed, progressbar=False,
        )  # fmt: skip
    rate = float(post.stats["acceptance_rate"].mean())
    return least(post.draws) / float(post.stats["n_steps"].sum()), rate


def by_numpyro(case: Case, draws: int = DRAWS, seed: int = 1) -> tuple[float, float]:
    """Like `by_modicum`, for NumPyro's NUTS by its defaults."""
    import jax
    from numpyro.infer import MCMC, NUTS

    with jax.enable_x64(True):
        chain = MCMC(
            NUTS(case.model), num_warmup=TUNE, num_samples=draws, num_chains=CHAINS,
            chain_method="sequential", progress_bar=False,
        )  # fmt: skip
        chain.run(
            jax.random.PRNGKey(seed), extra_fields=("num_steps", "accept_prob"), **case.fields
        )
    samples = chain.get_samples(group_by_chain=True)
    extra = chain.get_extra_fields()
    smallest = least({name: np.asarray(values) for name, values in samples.items()})
    return smallest / float(np.sum(extra["num_steps"])), float(np.mean(extra["accept_prob"]))


def run(quick: bool = False) -> list[Table]:
    """Compare both libraries on every model, or on the first two if `quick`."""
    table = Table(
        "NUTS on small models of posteriordb: effective draws per gradient, the least of all",
        ["posterior", "rows", "Modicum", "NumPyro", "ratio", "acceptance", "NumPyro's"],
    )
    if not DATA.exists():
        table.note = f"Left out: {DATA} is not here; run it from a checkout."
        return [table]
    posteriors = cases(json.loads(DATA.read_text())["posteriors"])
    names, draws = (list(posteriors)[:2], 200) if quick else (list(posteriors), DRAWS)
    for name in names:
        case = posteriors[name]
        (ours, rate), (theirs, its_rate) = by_modicum(case, draws), by_numpyro(case, draws)
        rows = len(case.fields["y"])
        table.rows.append([name, rows, ours, theirs, ours / theirs, rate, its_rate])
    return [table, by_default(json.loads(DATA.read_text())["posteriors"], quick)]


def by_default(posteriors: Mapping[str, Any], quick: bool) -> Table:
    """Sample all models of the database that are ported, or the first two, as the default does."""
    ports: Any = import_module("modicum_lab.tests.validation.ported").PORTS
    table = Table(
        "posteriordb by default, compared with its reference draws",
        ["posterior", "rows", "parameters", "method", "effective draws", "error", "warnings"],
    )
    for name in sorted(ports)[: 2 if quick else None]:
        known, data = posteriors[name], posteriors[name]["data"]
        port = ports[name](posteriors[data]["data"] if isinstance(data, str) else data)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", mo.ModicumWarning)
            post = mo.sample(port.model, port.rows, random_seed=1, progressbar=False)
        named = port.named(post.draws)
        draws = np.stack([np.asarray(named[k], float) for k in known["moments"]], axis=-1)
        mean, its_error, *_ = np.transpose(list(known["moments"].values()))
        off = np.abs(draws.mean((0, 1)) - mean) / np.hypot(mcse(draws), its_error)
        codes = ", ".join(f"`{warning.code}`" for warning in post.warnings)
        method, effective = post.settings["method"], float(np.min(ess(draws)))
        size = sum(values[0, 0].size for values in post.draws.values())
        table.rows.append([name, len(port.rows), size, method, effective, off.max(), codes])
    return table
