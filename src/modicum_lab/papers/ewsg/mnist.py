"""EWSG paper, Figure 3: learning curves of Bayesian networks on MNIST, five methods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from modicum import CPSGHMC, EWSG, PSGLD, SGHMC, SGLD
from modicum.datasets import mnist
from modicum.methods import Method
from modicum.models import CNN, MLP, BaseModel, Batch
from modicum.posterior import Posterior
from modicum.rows import Rows
from modicum_lab.papers.ewsg.common import draw_lines, label_of, panels, realisations, states
from modicum_lab.papers.experiments import Figure, Result, Scale, Table, experiment

__all__ = ["figure_3"]

BATCH, CLUSTERS = 100, 10


@dataclass(frozen=True)
class Size:
    """How much of the experiment is run."""

    fit: int | None  # rows to fit, the first so many of a random order; None: all
    scored: int  # rows of either part that a point of a curve is scored on
    passes: dict[str, float]
    realisations: dict[str, int]
    points: int
    of_cnn: tuple[str, ...] | None = None  # methods for the CNN, slow to compile; None: all


SIZES = {
    "smoke": Size(1_000, 200, {"mlp": 10, "cnn": 1}, {"mlp": 2, "cnn": 2}, 2, ("sgld", "ewsg")),
    "laptop": Size(None, 1_000, {"mlp": 3, "cnn": 2}, {"mlp": 2, "cnn": 1}, 8),
    "paper": Size(None, 10_000, {"mlp": 200, "cnn": 200}, {"mlp": 100, "cnn": 100}, 50),
}
FRICTION = {"mlp": 0.1, "cnn": 1.0}
LANGEVIN = {"mlp": (1e-7, 1e-4), "cnn": (2e-8, 8e-6)}  # h of SGLD and pSGLD
AS_SUM = "ewsg, V the sum"
PANEL = {"mlp": "3a", "cnn": "3b"}

NOTE = """\
The paper prints curves of training accuracy only, no numbers; its text has EWSG above SGHMC,
CP-SGHMC, SGLD and pSGLD after 200 passes with 100 realisations. Accuracy is that of the prediction
averaged over realisations. The paper does not say how V is scaled. With V the sum over all 60,000
rows EWSG diverges with the printed h and gamma (the row "EWSG, V the sum"), and pSGLD would move
every weight by n h per step, 6 for the MLP. They are read as steps for the mean, V / n,
at the posterior's temperature, 1 / n: the posterior's own dynamics with h / sqrt(n) and
gamma sqrt(n), and with h / n for pSGLD. SGLD's h makes sense for the sum, and is used so. Chains
start apart, at random weights by He's rule (the paper does not say); every weight has the prior
N(0, 1)."""
PAPER_SIZE = "The paper has 200 passes, 100 realisations and a CNN of 32 and 64 channels"


def _networks(scale: Scale) -> dict[str, BaseModel]:
    """Those of the paper; below its scale a smaller CNN, since a pass of it takes minutes."""
    if scale == "smoke":
        small = CNN(channels=(4, 8), kernel=3, hidden=(20,), classes=10)  # quick to compile
        return {"mlp": MLP(hidden=(20,), classes=10), "cnn": small}
    if scale == "laptop":
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
    """Training and test accuracy against data passes."""
    size = SIZES[scale]
    fit, test = _rows(size, seed)
    result = Result(settings={"data": "MNIST", "rows": len(fit), "size": size})
    result.settings["networks"] = {name: repr(net) for name, net in _networks(scale).items()}
    curves: dict[str, dict[str, Any]] = {}
    for network, model in _networks(scale).items():
        chosen = _methods(network, len(fit))
        if network == "cnn" and size.of_cnn is not None:
            chosen = {name: chosen[name] for name in size.of_cnn}
        result.settings[network] = {name: repr(method) for name, method in chosen.items()}
        curves[network] = {
            name: _curve(result, (name, network), model, method, (fit, test), size, seed)
            for name, method in chosen.items()
        }
    result.tables.append(_table(curves, size, _size_note(scale)))
    caption = "Accuracy of the prediction averaged over realisations, on some rows of either part."
    result.figures.append(Figure("figure-3", partial(_draw, curves), caption))
    return result


def _rows(size: Size, seed: int) -> tuple[Rows, Rows]:
    data = mnist(progressbar=False)
    assert data.test is not None
    if size.fit is None:
        return data.rows, data.test
    order = np.random.default_rng([seed, 3]).permutation(len(data.rows))[: size.fit]
    held = data.rows.take(np.sort(order))
    return Rows(x=held["x"], y=held["y"], dtype="uint8"), data.test


def _curve(
    result: Result,
    names: tuple[str, str],
    model: BaseModel,
    method: Method,
    parts: tuple[Rows, Rows],
    size: Size,
    seed: int,
) -> Any:
    """Accuracy on training and test rows against data passes; `names` of method and network."""
    (name, network), (fit, test) = names, parts
    passes = size.passes[network]
    thin = max(1, method.iterations(passes, len(fit)) // size.points)
    post = realisations(
        *(result, f"{name}, {network}", model, fit, method),
        chains=size.realisations[network],
        passes=passes,
        thin=thin,
        random_seed=seed,
    )
    seen = {"train": fit.slice(0, size.scored), "test": test.slice(0, size.scored)}
    return post.learning_curve(partial(_accuracies, post, seen))


def _accuracies(
    post: Posterior, seen: Mapping[str, Batch], now: dict[str, np.ndarray]
) -> dict[str, float]:
    at = states(post, now)
    scores = {part: at.score(rows, draws=post.chains) for part, rows in seen.items()}
    return {part: score.accuracy for part, score in scores.items()} | {
        "log_density": scores["test"].log_density,
        "single": scores["test"].single_accuracy,
    }


def _size_note(scale: Scale) -> str:
    """What is smaller here than in the paper."""
    if scale == "paper":
        return ""
    size, nets = SIZES[scale], _networks(scale)
    here = "; ".join(
        f"{name.upper()}: passes {size.passes[name]:g}, realisations {size.realisations[name]}, "
        + (f"channels {net.channels}, " if isinstance(net, CNN) else "")
        + f"hidden layers {net.hidden}"  # type: ignore[attr-defined]
        for name, net in nets.items()
    )
    rows = "all rows" if size.fit is None else f"{size.fit:,} rows"
    return f"{PAPER_SIZE}; here, on {rows}, {here}."


def _ordered(curves: dict[str, Any]) -> str:
    """Methods from the highest training accuracy to the lowest."""
    last = {name: float(curve["train"].iloc[-1]) for name, curve in curves.items()}
    return ", ".join(label_of(name) for name in sorted(last, key=lambda n: -last[n]))


def _table(curves: dict[str, dict[str, Any]], size: Size, size_note: str) -> Table:
    rows = []
    for network, each in curves.items():
        for name, curve in each.items():
            last = curve.iloc[-1]
            scores = [round(100 * float(last[part]), 2) for part in ("train", "test", "single")]
            density = round(float(last["log_density"]), 4)
            rows.append([network.upper(), label_of(name), size.passes[network], *scores, density])
    columns = [
        "network",
        "method",
        "data passes",
        "training accuracy (%)",
        "test accuracy (%)",
        "test accuracy, single (%)",
        "test log-likelihood",
    ]
    order = "; ".join(f"{network.upper()}: {_ordered(each)}" for network, each in curves.items())
    ends = f"By training accuracy at the end, best first, {order}."
    note = " ".join(f"{NOTE} {size_note} {ends}".split())
    return Table("figure-3", columns, rows, note)


def _draw(curves: dict[str, dict[str, Any]]) -> Any:
    figure, axes = panels(2 * len(curves), columns=2, size=(5.0, 3.6))
    places = [(network, part) for network in curves for part in ("train", "test")]
    for ax, (network, part) in zip(axes, places, strict=True):
        shown = {name: curve for name, curve in curves[network].items() if name != AS_SUM}
        lines = {name: (curve.index, curve[part]) for name, curve in shown.items()}
        kind = {"train": "training", "test": "test"}[part]
        title = f"{PANEL[network]}: {network.upper()}, {kind} rows"
        draw_lines(ax, lines, x="data passes", y=f"{kind} accuracy", title=title, marker=".")
    return figure
