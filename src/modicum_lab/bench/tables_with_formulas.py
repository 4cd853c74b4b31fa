"""Problems that are a table and a formula: rows in groups, and smooths.

What is compared are common coefficients and the sd of the groups, or the chances along smooths.
The references use nothing of Modicum. Groups: their effects are integrated out on a fine grid, one
group at a time, and the three numbers left by a product of Gauss-Hermite rules around the mode,
whose error is judged by a rule of fewer points. Smooths: the exact draws of
`modicum_lab.bench.parts.smooths`.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from modicum_lab.bench.accuracy import KeptReference
from modicum_lab.bench.parts import multilevel, smooths

LINE_SD, INTERCEPT_SD = smooths.LINE_SD, smooths.INTERCEPT_SD  # of the priors
GROUP_SD = smooths.SMOOTH_SD
PER_GROUP = 100
NODES, FEWER, GRID, REACH = 5, 4, 41, 6.0  # of the rules; of a group's effect, in its sds
SOME_ROWS = 20_000
INSIDE = 0.6827  # what lies within one sd of a normal: half the interval is called the sd
Reference = Callable[[pd.DataFrame], KeptReference]


@dataclass(frozen=True)
class TableProblem:
    """A table and a formula, with what `Problem` has.

    Attributes
    ----------
    kind
        "groups" or "smooths".
    build, reference
        Functions that make the table, and its reference.
    names
        What is compared.
    """

    name: str
    title: str
    kind: str
    formula: str
    build: Callable[[], pd.DataFrame]
    reference: Reference
    names: tuple[str, ...]
    description: str
    on_disk: bool = False

    def write(self, folder: Path) -> KeptReference:
        """Write the table as Parquet and, for R, as CSV; return the reference."""
        table = self.build()
        folder.mkdir(parents=True, exist_ok=True)
        table.to_parquet(folder / "table.parquet")
        table.to_csv(folder / "table.csv", index=False)
        if self.kind == "smooths":
            smooths.grid_of(table).to_csv(folder / "grid.csv", index=False)
        about = {
            "name": self.name,
            "title": self.title,
            "rows": len(table),
            "size": len(self.names),
            "description": self.description,
            "family": "Logistic",
            "formula": self.formula,
            "kind": self.kind,
        }
        (folder / "problem.json").write_text(json.dumps(about))
        return self.reference(table)


def simulated(groups: int) -> pd.DataFrame:
    """Simulate rows in groups."""
    with tempfile.TemporaryDirectory() as name:
        fields = multilevel.simulated(groups, Path(name), PER_GROUP)
        table = pd.DataFrame({"late": fields["y"].astype(int), "x": fields["x"][:, 0]})
        return table.assign(g=fields["g"].astype(int).astype(str))


def by_quadrature(table: pd.DataFrame) -> KeptReference:
    """Return moments of the slope, the intercept, and the sd of the groups."""
    import jax

    with jax.enable_x64(True):
        return _by_quadrature(table)


def _by_quadrature(table: pd.DataFrame) -> KeptReference:
    import jax
    import jax.numpy as jnp
    from scipy.optimize import minimize

    x, y = (jnp.asarray(table[name].to_numpy(), float) for name in ("x", "late"))
    codes, levels = pd.factorize(table["g"])
    effects = jnp.linspace(-REACH, REACH, GRID)
    weights = -0.5 * effects**2 - jnp.log(jnp.sum(jnp.exp(-0.5 * effects**2)))

    def log_density(theta: jax.Array) -> jax.Array:
        slope, intercept, log_sd = theta
        eta = (intercept + slope * x)[:, None] + jnp.exp(log_sd) * effects
        rows = y[:, None] * eta - jax.nn.softplus(eta)
        of_groups = jax.ops.segment_sum(rows, jnp.asarray(codes), len(levels))
        total = jnp.sum(jax.scipy.special.logsumexp(of_groups + weights, axis=1))
        away = jnp.array([slope / LINE_SD, intercept / INTERCEPT_SD, jnp.exp(log_sd) / GROUP_SD])
        return total - 0.5 * jnp.sum(away**2) + log_sd

    value = jax.jit(log_density)
    down = jax.jit(jax.value_and_grad(lambda theta: -log_density(theta)))
    mode = minimize(
        lambda t: [np.asarray(part) for part in down(jnp.asarray(t))],
        np.array([0.0, 0.0, -1.0]),
        jac=True,
        method="BFGS",
    ).x
    information = -np.asarray(jax.jit(jax.hessian(log_density))(jnp.asarray(mode)))
    factor = np.linalg.cholesky(np.linalg.inv(information))

    def moments(nodes: int) -> tuple[np.ndarray, np.ndarray]:
        at, mass = np.polynomial.hermite_e.hermegauss(nodes)
        z = np.stack(np.meshgrid(at, at, at), axis=-1).reshape(-1, 3)
        log_mass = np.log(np.stack(np.meshgrid(mass, mass, mass), axis=-1)).reshape(-1, 3).sum(1)
        points = mode + z @ factor.T
        logs = np.array([float(value(jnp.asarray(t))) for t in points])
        w = log_mass + logs + 0.5 * np.sum(z**2, axis=1)
        w = np.exp(w - w.max())
        w /= w.sum()
        named = np.column_stack([points[:, :2], np.exp(points[:, 2])])
        mean = w @ named
        return mean, np.sqrt(w @ (named - mean) ** 2)

    (mean, sd), (other, its) = moments(NODES), moments(FEWER)
    return KeptReference(
        mean.tolist(),
        sd.tolist(),
        (np.abs(mean - other) / sd).tolist(),
        np.abs(sd / its - 1).tolist(),
        f"quadrature, {GRID} points of each effect and {NODES}^3 of the three numbers",
    )


def by_exact_draws(table: pd.DataFrame) -> KeptReference:
    """Return moments of the chances along each smooth."""
    x, y = table[list(smooths.COLUMNS)].to_numpy(), table["late"].to_numpy()
    grid = smooths.grid_of(table).to_numpy()
    chances = smooths.exact_draws(x, y, grid, np.random.default_rng(3)).chances
    ends = np.quantile(chances, [(1 - INSIDE) / 2, (1 + INSIDE) / 2], axis=(0, 1))
    sd = (ends[1] - ends[0]) / 2
    error = chances.mean(axis=1).std(axis=0) / sd / np.sqrt(len(chances))
    draws = chances.shape[0] * chances.shape[1]
    return KeptReference(
        chances.mean(axis=(0, 1)).tolist(),
        sd.tolist(),
        error.tolist(),
        error.tolist(),
        f"{draws:,} exact draws of all rows, by NumPy",
    )


def _groups(groups: int) -> TableProblem:
    rows = groups * PER_GROUP
    return TableProblem(
        f"groups-{groups}",
        f"{groups:,} groups, {rows:,} rows, logistic",
        "groups",
        "late ~ x + (1 | g)",
        lambda: simulated(groups),
        by_quadrature,
        ("x", "intercept", "group_sd"),
        f"simulated, {PER_GROUP} rows of each group, whose effects have an sd of 0.5",
    )


def _smooths(name: str, title: str, rows: int | None) -> TableProblem:
    def build() -> pd.DataFrame:
        table = smooths.new_york()
        return table if rows is None else table.sample(rows, random_state=1)

    return TableProblem(
        name,
        title,
        "smooths",
        smooths.FORMULA,
        build,
        by_exact_draws,
        tuple(f"chance {k}" for k in range(len(smooths.COLUMNS) * smooths.GRID)),
        "flights out of New York in 2013, arrival more than 30 minutes late; what is compared are "
        f"chances along each smooth at {smooths.GRID} points",
    )


TABLES = (
    _groups(100),
    _groups(1_000),
    _smooths("smooths-20k", "three smooths, 20 thousand flights", SOME_ROWS),
    _smooths("smooths", "three smooths, New York flights", None),
)
