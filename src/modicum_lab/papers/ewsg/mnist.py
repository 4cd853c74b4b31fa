"""EWSG paper, Figure 3 (section 5.3): learning curves of Bayesian networks on MNIST."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from modicum import CPSGHMC, EWSG, PSGLD, SGHMC, SGLD
from modicum.methods import Method
from modicum.models import CNN, MLP, BaseModel, Batch
from modicum.plots import colour_of
from modicum.rows import Rows
from modicum_lab.datasets import mnist
from modicum_lab.papers.ewsg.common import draw_lines, label_of, panels, realisations
from modicum_lab.papers.experiments import (
    Claim,
    Figure,
    Result,
    Scale,
    Table,
    claims,
    experiment,
    sized,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure as MatplotlibFigure

BATCH, CLUSTERS = 100, 10


@dataclass(frozen=True)
class Size:
    """How much of the experiment is run."""

    fit: int | None  # number of rows to fit, in random order; None for all
    scored: int  # rows that are scored, of training and of test data
    passes: dict[str, float]
    realisations: dict[str, int]
    points: int
    only: Mapping[str, tuple[str, ...]] | None = None  # methods by network; None: all


SIZES: dict[Scale, Size] = {
    "smoke": Size(  # nearly all of it is compilation
        fit=1_000,
        scored=200,
        passes={"mlp": 10, "cnn": 1},
        realisations={"mlp": 3, "cnn": 2},
        points=2,
        only={"mlp": ("sgld", "ewsg"), "cnn": ("ewsg",)},
    ),
    "laptop": Size(None, 1_000, {"mlp": 3, "cnn": 2}, {"mlp": 2, "cnn": 1}, 8),
    "gpu": Size(None, 10_000, {"mlp": 200, "cnn": 200}, {"mlp": 10, "cnn": 8}, 10),
    "paper": Size(None, 10_000, {"mlp": 200, "cnn": 200}, {"mlp": 100, "cnn": 100}, 50),
}
FRICTION = {"mlp": 0.1, "cnn": 1.0}
LANGEVIN = {"mlp": (1e-7, 1e-4), "cnn": (2e-8, 8e-6)}  # h of SGLD and pSGLD
AS_SUM, SUM_PASSES = "ewsg, V the sum", 5.0  # it has diverged by then
PANEL = {"mlp": "3a", "cnn": "3b"}

NOTE = """\
The paper prints curves of training accuracy only, no numbers; its text has EWSG above SGHMC,
CP-SGHMC, SGLD and pSGLD after 200 passes with 100 realisations. Accuracy and log-likelihood are
those of the prediction averaged over realisations, on the first {scored:,} rows of either part, ±
their standard error by the jackknife over realisations; "single" is the mean of what one
realisation scores by itself, ± its standard error. The paper does not say how V is scaled. With V
the sum over all 60,000 rows EWSG diverges with the printed h and gamma (the row "EWSG, V the sum"),
and pSGLD would move every weight by n h per step, 6 for the MLP. They are read as steps for the
mean, V / n, at the temperature 1 / n: the dynamics of the posterior itself with h / sqrt(n) and
gamma sqrt(n), and with h / n for pSGLD. SGLD's h makes sense for the sum, and is used so. Chains
start apart, at random weights by He's rule (the paper does not say); every weight has the prior
N(0, 1)."""
PAPER_SIZE = "The paper has 200 passes, 100 realisations and a CNN of 32 and 64 channels"


def _networks(scale: Scale) -> dict[str, BaseModel]:
    """Return the paper's networks; without a GPU a smaller CNN, since a pass takes minutes."""
    if scale == "smoke":
        small = CNN(channels=(4, 8), kernel=3, hidden=(20,), classes=10)  # quick to compile
        return {"mlp": MLP(hidden=(20,), classes=10), "cnn": small}
    if scale == "laptop":  # minutes on two cores
        quarter = CNN(channels=(8, 16), hidden=(50, 50), classes=10)
        return {"mlp": MLP(classes=10), "cnn": quarter}
    return {"mlp": MLP(classes=10), "cnn": CNN(classes=10)}


def _methods(network: str, n: int) -> dict[str, Method]:
    settings: dict[str, Any] = {"batch": BATCH, "whiten": False, "precision": "float32"}
    sgld, psgld = LANGEVIN[network]
    root = n**0.5
    gamma = FRICTION[network] * root
    chosen: dict[str, Method] = {
        "sgld": SGLD(step_size=2 * sgld, **settings),
        "psgld": PSGLD(step_size=2 * psgld / n, **settings),
        "sghmc": SGHMC(step_size=2e-3 / root, friction=gamma, **settings),
        "cp-sghmc": CPSGHMC(step_size=2e-3 / root, friction=gamma, clusters=CLUSTERS, **settings),
        "ewsg": EWSG(step_size=4e-3 / root, friction=gamma, **settings),
    }
    if network == "mlp":  # what the printed numbers do if V is the sum
        chosen[AS_SUM] = EWSG(step_size=4e-3, friction=FRICTION[network], **settings)
    return chosen


@experiment("ewsg", "figure-3", "MNIST: learning curves of two networks, five methods")
def figure_3(scale: Scale, seed: int) -> Result:
    """Measure training and test accuracy against data passes."""
    size = sized(SIZES, scale)
    fit, test = _rows(size, seed)
    result = Result(settings={"data": "MNIST", "rows": len(fit), "size": size})
    result.settings["networks"] = {name: repr(net) for name, net in _networks(scale).items()}
    runs: dict[str, dict[str, Learned]] = {}
    for network, model in _networks(scale).items():
        chosen = _methods(network, len(fit))
        if size.only is not None:
            chosen = {name: chosen[name] for name in size.only[network]}
        result.settings[network] = {name: repr(method) for name, method in chosen.items()}
        runs[network] = {
            name: _learn(result, (name, network), model, method, (fit, test), size, seed)
            for name, method in chosen.items()
        }
    result.tables += [_table(runs, size, _size_note(scale)), _claims(runs)]
    caption = (
        f"Accuracy of the prediction averaged over realisations, on {size.scored:,} rows of either "
        "part; at the end, its standard error by the jackknife over realisations."
    )
    result.figures.append(Figure("figure-3", partial(_draw, runs), caption))
    return result


def _rows(size: Size, seed: int) -> tuple[Rows, Rows]:
    data = mnist(progressbar=False)
    assert data.test is not None
    if size.fit is None:
        return data.rows, data.test
    order = np.random.default_rng([seed, 3]).permutation(len(data.rows))[: size.fit]
    fields = data.rows.take(np.sort(order))
    return Rows(x=fields["x"], y=fields["y"], dtype="uint8"), data.test


@dataclass(frozen=True)
class Learned:
    """Scores of a method along the run, and the standard errors of the last ones.

    Attributes
    ----------
    curve
        Indexed by passes: train, test, log_density, single.
    error
        Standard errors of the curve's last line, by column.
    """

    curve: pd.DataFrame
    error: dict[str, float]

    @property
    def last(self) -> dict[str, float]:
        """Scores at the end of the run."""
        return {str(name): float(value) for name, value in self.curve.iloc[-1].items()}


def _learn(
    result: Result,
    names: tuple[str, str],
    model: BaseModel,
    method: Method,
    parts: tuple[Rows, Rows],
    size: Size,
    seed: int,
) -> Learned:
    """Return accuracy on training and test rows against data passes, for a method and network."""
    (name, network), (fit, test) = names, parts
    passes = min(size.passes[network], SUM_PASSES if name == AS_SUM else np.inf)
    thin = max(1, method.iterations(passes, len(fit)) // size.points)
    post = realisations(
        *(result, f"{name}, {network}", model, fit, method),
        chains=size.realisations[network],
        passes=passes,
        thin=thin,
        random_seed=seed,
    )
    scored = {"train": fit.slice(0, size.scored), "test": test.slice(0, size.scored)}
    curve = post.learning_curve(lambda now: scores(chances(model, now, scored), scored))
    last = {name: x[:, -1] for name, x in post.draws.items()}
    return Learned(curve, _errors(chances(model, last, scored), scored))


Chances = dict[str, np.ndarray]
"""By part of the data, the probabilities of the classes, (realisation, row, class)."""

PIECE = 200  # images evaluated at once, since convolutions take much memory


def chances(model: BaseModel, now: dict[str, np.ndarray], scored: Mapping[str, Batch]) -> Chances:
    """Return the predictions of each realisation, (chain, *shape) by name, for scored rows."""
    return {part: np.asarray(_chances(model, now, rows["x"])) for part, rows in scored.items()}


@partial(jax.jit, static_argnums=0)
def _chances(model: BaseModel, now: dict[str, jax.Array], images: jax.Array) -> jax.Array:
    """Evaluate one realisation and a few images at a time, with a single compilation."""
    pieces = images.reshape(-1, min(PIECE, len(images)), *images.shape[1:])

    def of_one(named: dict[str, jax.Array]) -> jax.Array:
        theta = model.restore(named)
        predicted = jax.lax.map(lambda piece: model.expected(theta, {"x": piece}), pieces)
        return predicted.reshape(len(images), -1)

    answers: jax.Array = jax.lax.map(of_one, now)
    return answers


def scores(predicted: Chances, scored: Mapping[str, Batch]) -> dict[str, float]:
    """Score the prediction averaged over realisations; "single" averages individual scores."""
    right = {part: _accuracy(predicted[part].mean(axis=0), scored[part]) for part in predicted}
    density = np.log(_chance_of_outcome(predicted["test"].mean(axis=0), scored["test"]))
    return right | {
        "log_density": float(density.mean()),
        "single": _singles(predicted, scored).mean(),
    }


def _chance_of_outcome(chance: np.ndarray, rows: Batch) -> np.ndarray:
    """Return the probability of the observed class of each row."""
    return np.take_along_axis(chance, np.asarray(rows["y"], int)[:, None], axis=1)[:, 0]


def _accuracy(chance: np.ndarray, rows: Batch) -> float:
    return float(np.mean(chance.argmax(axis=1) == rows["y"]))


def _singles(predicted: Chances, scored: Mapping[str, Batch]) -> np.ndarray:
    return np.array([_accuracy(chances, scored["test"]) for chances in predicted["test"]])


def _errors(predicted: Chances, scored: Mapping[str, Batch]) -> dict[str, float]:
    """Return standard errors of scores, by leaving out one realisation at a time."""
    count = len(predicted["test"])
    if count < 3:
        return {}
    without = [
        scores({part: np.delete(values, k, axis=0) for part, values in predicted.items()}, scored)
        for k in range(count)
    ]
    error = {name: jackknife([values[name] for values in without]) for name in without[0]}
    return error | {"single": float(np.std(_singles(predicted, scored), ddof=1) / np.sqrt(count))}


def jackknife(without: Sequence[float]) -> float:
    """Return the standard error from the values with one realisation left out at a time.

    Examples
    --------
    >>> x = np.array([1.0, 2.0, 4.0, 9.0])
    >>> round(jackknife([np.delete(x, k).mean() for k in range(4)]), 6)
    1.779513
    >>> round(float(x.std(ddof=1) / 2), 6)
    1.779513
    """
    values = np.asarray(without, float)
    return float(np.sqrt((len(values) - 1) * np.var(values)))


def _size_note(scale: Scale) -> str:
    """Return a note on what is smaller here than in the paper."""
    if scale == "paper":
        return ""
    size, nets = sized(SIZES, scale), _networks(scale)
    here = "; ".join(
        f"{name.upper()}: passes {size.passes[name]:g}, realisations {size.realisations[name]}, "
        + (f"channels {net.channels}, " if isinstance(net, CNN) else "")
        + f"hidden layers {net.hidden}"  # type: ignore[attr-defined]
        for name, net in nets.items()
    )
    rows = "all rows" if size.fit is None else f"{size.fit:,} rows"
    return f"{PAPER_SIZE}; here, on {rows}, {here}."


def _ordered(runs: Mapping[str, Learned]) -> str:
    """List methods from the highest training accuracy to the lowest."""
    last = {name: run.last["train"] for name, run in runs.items()}
    return ", ".join(label_of(name) for name in sorted(last, key=lambda n: -last[n]))


def _claims(runs: Mapping[str, Mapping[str, Learned]]) -> Table:
    """Compare the final accuracy of EWSG with each other method, in standard errors."""
    rows: list[Claim] = []
    for network, learned in runs.items():
        ewsg = learned["ewsg"]
        for name, run in learned.items():
            if name in ("ewsg", AS_SUM):
                continue
            gap = ewsg.last["train"] - run.last["train"]
            claim = f"{network.upper()}: EWSG trains better than {label_of(name)}"
            rows.append((claim, f"by {_behind(run, ewsg)} points", "yes", gap > 0))
    note = "Where a gap is less than twice its standard error, either order may be chance."
    return claims(rows, note)


COLUMNS = {
    "training accuracy (%)": ("train", 100, 2),
    "test accuracy (%)": ("test", 100, 2),
    "test accuracy, single (%)": ("single", 100, 2),
    "test log-likelihood": ("log_density", 1, 4),
}
"""By heading: the score, its unit and its decimals."""


def _table(runs: Mapping[str, Mapping[str, Learned]], size: Size, size_note: str) -> Table:
    columns = ["network", "method", "data passes", *COLUMNS, "training accuracy below EWSG's (%)"]
    rows = [
        [
            network.upper(),
            label_of(name),
            round(float(run.curve.index[-1]), 1),
            *(_with_error(run, *how) for how in COLUMNS.values()),
            _behind(run, own.get("ewsg")),
        ]
        for network, own in runs.items()
        for name, run in own.items()
    ]
    order = "; ".join(f"{network.upper()}: {_ordered(own)}" for network, own in runs.items())
    ends = f"By training accuracy at the end, best first, {order}."
    note = " ".join(f"{NOTE.format(scored=size.scored)} {size_note} {ends}".split())
    return Table("figure-3", columns, rows, note)


def _with_error(run: Learned, score: str, unit: int, decimals: int) -> str:
    text = f"{unit * run.last[score]:.{decimals}f}"
    error = run.error.get(score)
    if error is None or not np.isfinite(error):  # the method has diverged
        return text
    return f"{text} ± {unit * error:.{decimals}f}"


def _behind(run: Learned, ewsg: Learned | None) -> str | None:
    """Return how far EWSG is ahead, with the error of independent realisations."""
    if ewsg is None or run is ewsg:
        return None
    gap = f"{100 * (ewsg.last['train'] - run.last['train']):.2f}"
    if not (run.error and ewsg.error):
        return gap
    return f"{gap} ± {100 * float(np.hypot(run.error['train'], ewsg.error['train'])):.2f}"


def _draw(runs: Mapping[str, Mapping[str, Learned]]) -> MatplotlibFigure:
    figure, axes = panels(2 * len(runs), columns=2, size=(5.0, 3.6))
    places = [(network, part) for network in runs for part in ("train", "test")]
    for ax, (network, part) in zip(axes, places, strict=True):
        learned = {name: run for name, run in runs[network].items() if name != AS_SUM}
        lines = {name: (run.curve.index, run.curve[part]) for name, run in learned.items()}
        kind = {"train": "training", "test": "test"}[part]
        title = f"{PANEL[network]}: {network.upper()}, {kind} rows"
        draw_lines(ax, lines, x="data passes", y=f"{kind} accuracy", title=title, marker=".")
        for name, run in learned.items():
            if part in run.error:
                end = run.curve.index[-1], run.last[part]
                ax.errorbar(*end, run.error[part], color=colour_of(name), capsize=3)
        best = max(float(np.nanmax(values)) for _, values in lines.values())
        if best > 0.9:  # zoom in: the first passes would hide the differences at the end
            ax.set_ylim(bottom=max(0.0, 1 - 6 * (1 - _lowest_end(lines, best))))
    return figure


def _lowest_end(lines: Mapping[str, Any], best: float) -> float:
    """Return the lowest final accuracy of the methods that learned anything."""
    ends = [float(values.iloc[-1]) for _, values in lines.values()]
    return min([end for end in ends if end > 0.8] or [best])
