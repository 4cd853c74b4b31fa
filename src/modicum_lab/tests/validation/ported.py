"""Models of posteriordb (Magnusson and others, stan-dev/posteriordb) written for Modicum.

Each port is a function from the database's JSON data to a model over unconstrained parameters, its
rows, and a function that turns draws into the parameters of the reference draws. Priors are those
of the database. A positive parameter has a constraint, or is written as an exponential, with the
log-Jacobian in the log-prior.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import modicum as mo


class Port(NamedTuple):
    model: mo.Model
    rows: mo.Rows
    named: Callable  # draws -> {name in the database: (chain, draw)}


def normal(x, mean, sd):
    return -0.5 * ((x - mean) / sd) ** 2 - jnp.log(sd)


def half_cauchy(x, scale):
    return -jnp.log1p((x / scale) ** 2)


def numbered(name, values, axis=-1):
    return {f"{name}[{i + 1}]": values[..., i] for i in range(values.shape[axis])}


def regression(x, y, prior=lambda beta, sigma: 0.0, names=None):
    """A normal outcome with mean x @ beta and standard deviation sigma.

    The search for the mode starts at the least-squares estimate.
    """
    x, y = np.asarray(x, float), np.asarray(y, float)
    beta = np.linalg.lstsq(x, y, rcond=None)[0]

    def log_prior(th):
        return prior(th["beta"], th["sigma"])

    def log_likelihood(th, b):
        return normal(b["y"], b["x"] @ th["beta"], th["sigma"])

    def named(draws):
        coefficients = numbered("beta", draws["beta"])
        if names:
            coefficients = dict(zip(names, coefficients.values(), strict=True))
        return coefficients | {"sigma": draws["sigma"]}

    init = {"beta": beta, "sigma": np.std(y - x @ beta)}
    model = mo.Model(log_prior, log_likelihood, init, constraints={"sigma": mo.positive})
    return Port(model, mo.Rows(x=x, y=y), named)


def columns(data, *names):
    return np.c_[np.ones(data["N"]), *(np.asarray(data[name], float) for name in names)]


def cauchy_scale(beta, sigma):
    return half_cauchy(sigma, 2.5)


def kidscore_momiq(data):
    return regression(columns(data, "mom_iq"), data["kid_score"], cauchy_scale)


def kidscore_momhs(data):
    return regression(columns(data, "mom_hs"), data["kid_score"], cauchy_scale)


def kidscore_momhsiq(data):
    return regression(columns(data, "mom_hs", "mom_iq"), data["kid_score"], cauchy_scale)


def with_product(data, first, second, prior=lambda beta, sigma: 0.0):
    one, other = (np.asarray(values, float) for values in (first, second))
    x = np.c_[np.ones(data["N"]), one, other, one * other]
    return regression(x, data["kid_score"], prior)


def kidscore_interaction(data):
    return with_product(data, data["mom_hs"], data["mom_iq"], cauchy_scale)


def centred(values, by=None):
    values = np.asarray(values, float)
    return values - (values.mean() if by is None else by)


def kidscore_interaction_c(data):
    return with_product(data, centred(data["mom_hs"]), centred(data["mom_iq"]))


def kidscore_interaction_c2(data):
    return with_product(data, centred(data["mom_hs"], 0.5), centred(data["mom_iq"], 100))


def kidscore_interaction_z(data):
    both = (centred(data[name]) / (2 * np.std(data[name], ddof=1)) for name in ("mom_hs", "mom_iq"))
    return with_product(data, *both)


def levels(values, *of):
    return np.stack([np.asarray(values) == level for level in of], axis=1) * 1.0


def kidscore_mom_work(data):
    x = np.c_[np.ones(data["N"]), levels(data["mom_work"], 2, 3, 4)]
    return regression(x, data["kid_score"])


def logearn_interaction(data):
    x = columns(data, "height", "male")
    return regression(np.c_[x, x[:, 1] * x[:, 2]], np.log(data["earn"]))


def logearn_interaction_z(data):
    x = columns(data, "height", "male")
    x[:, 1] = centred(x[:, 1]) / np.std(x[:, 1], ddof=1)
    return regression(np.c_[x, x[:, 1] * x[:, 2]], np.log(data["earn"]))


def earn_height(data):
    return regression(columns(data, "height"), data["earn"])


def log10earn_height(data):
    return regression(columns(data, "height"), np.log10(data["earn"]))


def logearn_height(data):
    return regression(columns(data, "height"), np.log(data["earn"]))


def logearn_height_male(data):
    return regression(columns(data, "height", "male"), np.log(data["earn"]))


def logearn_logheight_male(data):
    x = columns(data, "height", "male")
    x[:, 1] = np.log(x[:, 1])
    return regression(x, np.log(data["earn"]))


def canopy(data, *further):
    """Logarithms of volume, area and shape of the canopy, and of further measurements."""
    one, other, height = (
        np.asarray(data[name], float) for name in ("diam1", "diam2", "canopy_height")
    )
    parts = {"volume": one * other * height, "area": one * other, "shape": one / other}
    parts |= {name: np.asarray(data[name], float) for name in ("total_height", "density")}
    return [np.log(parts[name]) for name in further]


def of_weights(data, *parts, group=True):
    x = np.c_[np.ones(data["N"]), *parts]
    x = np.c_[x, np.asarray(data["group"], float)] if group else x
    return regression(x, np.log(data["weight"]))


def logmesquite(data):
    diameters = [np.log(data[name]) for name in ("diam1", "diam2", "canopy_height")]
    return of_weights(data, *diameters, *canopy(data, "total_height", "density"))


def logmesquite_logvolume(data):
    return of_weights(data, *canopy(data, "volume"), group=False)


def logmesquite_logva(data):
    return of_weights(data, *canopy(data, "volume", "area"))


def logmesquite_logvash(data):
    return of_weights(data, *canopy(data, "volume", "area", "shape", "total_height"))


def logmesquite_logvas(data):
    return of_weights(data, *canopy(data, "volume", "area", "shape", "total_height", "density"))


def nes(data):
    x = np.c_[columns(data, "real_ideo", "race_adj"), levels(data["age_discrete"], 2, 3, 4)]
    rest = [np.asarray(data[name], float) for name in ("educ1", "gender", "income")]
    return regression(np.c_[x, *rest], data["partyid7"])


def mesquite(data):
    names = ("diam1", "diam2", "canopy_height", "total_height", "density", "group")
    return regression(columns(data, *names), data["weight"])


def blr(data):
    def prior(beta, sigma):
        return jnp.sum(normal(beta, 0, 10.0)) + normal(sigma, 0, 10.0)

    return regression(data["X"], data["y"], prior)


def kilpisjarvi(data):
    def prior(beta, sigma):
        alpha = normal(beta[0], data["pmualpha"], data["psalpha"])
        return alpha + normal(beta[1], data["pmubeta"], data["psbeta"])

    return regression(columns(data, "x"), data["y"], prior, names=("alpha", "beta"))


def ar_k(data):
    """An autoregression: the columns of a row are the preceding outcomes."""
    y, lags = np.asarray(data["y"]), data["K"]
    before = np.stack([y[lags - k - 1 : len(y) - k - 1] for k in range(lags)], axis=1)

    def prior(beta, sigma):
        return jnp.sum(normal(beta, 0, 10.0)) + half_cauchy(sigma, 2.5)

    names = ("alpha", *(f"beta[{k + 1}]" for k in range(lags)))
    return regression(np.c_[np.ones(len(before)), before], y[lags:], prior, names)


def eight_schools(data):
    """Rubin's eight schools (1981), non-centred; indicator columns give the school of a row."""

    def log_prior(th):
        tau = jnp.exp(th["log_tau"])
        effects = jnp.sum(normal(th["z"], 0, 1.0)) + normal(th["mu"], 0, 5.0)
        return effects + half_cauchy(tau, 5.0) + th["log_tau"]

    def log_likelihood(th, b):
        effect = th["mu"] + jnp.exp(th["log_tau"]) * (b["school"] @ th["z"])
        return normal(b["y"], effect, b["sigma"])

    def named(draws):
        tau = np.exp(draws["log_tau"])
        theta = draws["mu"][..., None] + tau[..., None] * draws["z"]
        return numbered("theta", theta) | {"mu": draws["mu"], "tau": tau}

    y, sigma = (np.asarray(data[name], float) for name in ("y", "sigma"))
    init = {"mu": 0.0, "log_tau": 0.0, "z": np.zeros(len(y))}
    rows = mo.Rows(school=np.eye(len(y)), y=y, sigma=sigma)
    return Port(mo.Model(log_prior, log_likelihood, init), rows, named)


def low_dim_gauss_mix(data):
    """A mixture of two normals with ordered means: the second is the first plus an exponential."""

    def parts(th):
        low = th["low"]
        mu = jnp.stack([low, low + jnp.exp(th["log_gap"])])
        return mu, jnp.exp(th["log_sigma"]), jax.nn.log_sigmoid(jnp.stack([1, -1]) * th["logit"])

    def log_prior(th):
        mu, sigma, log_share = parts(th)
        derivatives = th["log_gap"] + jnp.sum(th["log_sigma"]) + jnp.sum(log_share)
        spread = jnp.sum(normal(mu, 0, 2.0)) + jnp.sum(normal(sigma, 0, 2.0))
        return spread + 4 * jnp.sum(log_share) + derivatives  # beta(5, 5)

    def log_likelihood(th, b):
        mu, sigma, log_share = parts(th)
        return jax.nn.logsumexp(log_share + normal(b["y"][:, None], mu, sigma), axis=1)

    def named(draws):
        mu = np.stack([draws["low"], draws["low"] + np.exp(draws["log_gap"])], axis=-1)
        share = 1 / (1 + np.exp(-draws["logit"]))
        return numbered("mu", mu) | numbered("sigma", np.exp(draws["log_sigma"])) | {"theta": share}

    init = {"low": -1.0, "log_gap": 0.0, "log_sigma": np.zeros(2), "logit": 0.0}
    return Port(mo.Model(log_prior, log_likelihood, init), mo.Rows(y=np.asarray(data["y"])), named)


def runge_kutta(slope, state, times, steps):
    """States at `times`, evenly spaced from 0, `steps` steps of order four between two of them."""
    h = times[0] / steps

    def step(z, k):
        t = k * h
        a = slope(t, z)
        b = slope(t + h / 2, z + h / 2 * a)
        c = slope(t + h / 2, z + h / 2 * b)
        d = slope(t + h, z + h * c)
        z = z + h / 6 * (a + 2 * b + 2 * c + d)
        return z, z

    _, path = jax.lax.scan(step, state, jnp.arange(steps * len(times)))
    return path[steps - 1 :: steps]


def lotka_volterra(data):
    """Hares and lynxes: one row per year, the first being the initial state."""
    times = np.asarray(data["ts"], float)

    def log_prior(th):
        theta, start, sigma = (jnp.exp(th[f"log_{name}"]) for name in ("theta", "start", "sigma"))
        rates = normal(theta, jnp.array([1, 0.05, 1, 0.05]), jnp.array([0.5, 0.05, 0.5, 0.05]))
        logs = jnp.sum(normal(th["log_sigma"], -1, 1.0)) + jnp.sum(
            normal(th["log_start"], jnp.log(10.0), 1.0)
        )
        del start, sigma  # log-normal priors cancel the log-Jacobians
        return jnp.sum(rates) + logs + jnp.sum(th["log_theta"])

    def log_likelihood(th, b):
        alpha, beta, gamma, delta = jnp.exp(th["log_theta"])

        def slope(t, z):
            u, v = z
            return jnp.stack([(alpha - beta * v) * u, (-gamma + delta * u) * v])

        start = jnp.exp(th["log_start"])
        path = jnp.concatenate([start[None], runge_kutta(slope, start, times, 10)])
        here = path[b["year"].astype(int)]
        return jnp.sum(
            normal(jnp.log(b["animals"]), jnp.log(here), jnp.exp(th["log_sigma"])), axis=1
        )

    def named(draws):
        out = {}
        for name, ours in (("theta", "theta"), ("z_init", "start"), ("sigma", "sigma")):
            out |= numbered(name, np.exp(draws[f"log_{ours}"]))
        return out

    init = {
        "log_theta": np.log([0.5, 0.03, 0.8, 0.03]),
        "log_start": np.log([30.0, 4.0]),
        "log_sigma": np.full(2, -1.0),
    }
    y = np.concatenate([[data["y_init"]], data["y"]])
    rows = mo.Rows(year=np.arange(len(y)) * 1.0, animals=y)
    return Port(mo.Model(log_prior, log_likelihood, init), rows, named)


def one_comp_mm_elim_abs(data):
    """Absorption and Michaelis-Menten elimination of a dose, measured at evenly spaced times."""
    times = np.asarray(data["times"], float)
    dose, volume = data["D"], data["V"]
    names = ("k_a", "K_m", "V_m", "sigma")

    def log_prior(th):
        return jnp.sum(half_cauchy(jnp.exp(th["log"]), 1.0)) + jnp.sum(th["log"])

    def log_likelihood(th, b):
        k_a, k_m, v_m, sigma = jnp.exp(th["log"])

        def slope(t, c):
            return jnp.exp(-k_a * t) * dose * k_a / volume - v_m / volume * c / (k_m + c)

        path = runge_kutta(slope, jnp.zeros(()), times, 10)
        return normal(jnp.log(b["c"]), jnp.log(path[b["index"].astype(int)]), sigma)

    def named(draws):
        return dict(zip(names, np.moveaxis(np.exp(draws["log"]), -1, 0), strict=True))

    rows = mo.Rows(index=np.arange(len(times)) * 1.0, c=np.asarray(data["C_hat"]))
    return Port(mo.Model(log_prior, log_likelihood, {"log": np.log([1, 1, 1, 0.3])}), rows, named)


PORTS = {
    "arK-arK": ar_k,
    "earnings-earn_height": earn_height,
    "earnings-log10earn_height": log10earn_height,
    "earnings-logearn_height": logearn_height,
    "earnings-logearn_height_male": logearn_height_male,
    "earnings-logearn_interaction": logearn_interaction,
    "earnings-logearn_interaction_z": logearn_interaction_z,
    "earnings-logearn_logheight_male": logearn_logheight_male,
    "eight_schools-eight_schools_noncentered": eight_schools,
    "hudson_lynx_hare-lotka_volterra": lotka_volterra,
    "kidiq-kidscore_interaction": kidscore_interaction,
    "kidiq-kidscore_momhs": kidscore_momhs,
    "kidiq-kidscore_momhsiq": kidscore_momhsiq,
    "kidiq-kidscore_momiq": kidscore_momiq,
    "kidiq_with_mom_work-kidscore_interaction_c": kidscore_interaction_c,
    "kidiq_with_mom_work-kidscore_interaction_c2": kidscore_interaction_c2,
    "kidiq_with_mom_work-kidscore_interaction_z": kidscore_interaction_z,
    "kidiq_with_mom_work-kidscore_mom_work": kidscore_mom_work,
    "kilpisjarvi_mod-kilpisjarvi": kilpisjarvi,
    "low_dim_gauss_mix-low_dim_gauss_mix": low_dim_gauss_mix,
    "mesquite-logmesquite": logmesquite,
    "mesquite-logmesquite_logva": logmesquite_logva,
    "mesquite-logmesquite_logvas": logmesquite_logvas,
    "mesquite-logmesquite_logvash": logmesquite_logvash,
    "mesquite-logmesquite_logvolume": logmesquite_logvolume,
    "mesquite-mesquite": mesquite,
    "nes1972-nes": nes,
    "nes2000-nes": nes,
    "one_comp_mm_elim_abs-one_comp_mm_elim_abs": one_comp_mm_elim_abs,
    "sblrc-blr": blr,
    "sblri-blr": blr,
}
RUBIN = {"y": [28, 8, -3, 7, -1, 1, 18, 12], "sigma": [15, 10, 16, 11, 9, 11, 10, 18]}


def marginal_of_mu_and_tau():
    """Return moments of mu and tau by summing over a grid, with the effects integrated out.

    y_j ~ N(mu, sigma_j^2 + tau^2), mu ~ N(0, 5^2), tau ~ half-Cauchy(0, 5).
    """
    y, sigma = (np.array(RUBIN[name], float) for name in ("y", "sigma"))
    mu = np.linspace(-25, 35, 601)[:, None, None]
    log_tau = np.linspace(-12, 6, 1_801)[None, :, None]
    tau = np.exp(log_tau)
    variance = sigma**2 + tau**2
    log = -0.5 * ((y - mu) ** 2 / variance + np.log(variance)).sum(axis=-1)
    log += (-0.5 * (mu / 5) ** 2 - np.log1p((tau / 5) ** 2) + log_tau)[..., 0]
    weight = np.exp(log - log.max())
    weight /= weight.sum()
    mu, tau = mu[..., 0], tau[..., 0]
    # moments of tau^2 are useless: its tail is nearly Cauchy
    return {"mu": (weight * mu).sum(), "log_tau": (weight * np.log(tau)).sum(),
            "mu2": (weight * mu**2).sum()}  # fmt: skip
