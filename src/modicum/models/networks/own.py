"""User-defined networks, given by an apply function: from Flax, Equinox or written by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from modicum.errors import DataError, SettingError, fault_text
from modicum.models.base import Params, named_leaves
from modicum.models.networks.base import NeuralModel
from modicum.models.outcomes import largest_class
from modicum.models.tracing import uncompiled
from modicum.rows import Rows
from modicum.runtime import Array


class Network(NeuralModel):
    """A network of your own, with a normal prior on every weight.

    Parameters
    ----------
    apply
        `apply(params, x)`: outputs of a batch of rows, (rows, K) logits of K classes, or (rows,)
        or (rows, 1) means. It must be a plain function of its arguments: no dropout, no batch
        statistics.
    params
        Starting weights: any pytree of floating-point arrays. It fixes the names of the draws:
        ``{"Dense_0": {"kernel": ...}}`` gives ``Dense_0.kernel``.
    likelihood
        "categorical" for classes 0, 1, ..., K - 1, or "gaussian" for a real outcome.
    noise_scale
        Standard deviation of a Gaussian outcome.
    prior_scale
        Standard deviation of the normal prior on every weight.
    scale
        Factor that multiplies x; None means 1/255 for rows held as bytes, and 1 otherwise.
    init
        Optional `init(key)`: random weights in the structure of `params`, to start each chain
        elsewhere.

    Examples
    --------
    A hand-written network; with Flax it would be ``Network(net.apply, net.init(key, x[:1]))``, and
    with Equinox ``params, static = eqx.partition(net, eqx.is_inexact_array)`` and
    ``Network(lambda p, x: jax.vmap(eqx.combine(p, static))(x), params)``.

    >>> import jax.numpy as jnp, numpy as np, modicum as mo
    >>> def apply(params, x):
    ...     return jnp.tanh(x @ params["in"]) @ params["out"]
    >>> rng = np.random.default_rng(1)
    >>> params = {"in": rng.normal(size=(2, 4)), "out": rng.normal(size=(4, 3))}
    >>> net = mo.models.Network(apply, params)
    >>> rows = mo.Rows(x=rng.normal(size=(9, 2)), y=np.arange(9) % 3)
    >>> net.check(rows)
    >>> net.expected(net.start(rows), rows.slice(0, 5)).shape
    (5, 3)
    """

    users_functions: ClassVar[bool] = True

    def __init__(
        self,
        apply: Callable[[Params, jax.Array], jax.Array],
        params: Params,
        likelihood: str = "categorical",
        noise_scale: float = 1.0,
        prior_scale: float = 1.0,
        scale: float | None = None,
        init: Callable[[jax.Array], Params] | None = None,
    ) -> None:
        if not callable(apply):
            raise SettingError(
                f"apply must be a function of (params, x), not {type(apply).__name__}."
            )
        self.apply, self.params, self.init = uncompiled(apply), params, init
        self.likelihood, self.noise_scale = likelihood, noise_scale
        self.prior_scale, self.scale = prior_scale, scale
        self.check_settings()
        self._check_params()

    def outputs(self, theta: Params, x: jax.Array) -> jax.Array:
        """Return what `apply` returns."""
        return self.apply(theta, x)

    def start(self, rows: Rows) -> Params:
        """Return `params` in float64."""
        del rows
        return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), self.params)

    def random_start(self, rows: Rows, key: jax.Array) -> Params:
        """Return `init(key)`; without `init`, `params`."""
        return self.start(rows) if self.init is None else self.init(key)

    def report(self, theta: Params) -> dict[str, jax.Array]:
        """Name weights by their place in the tree, without Flax's outermost "params"."""
        named = named_leaves(theta)
        if all(name.startswith("params.") for name in named):
            return {name.removeprefix("params."): leaf for name, leaf in named.items()}
        return named

    def restore(self, named: Mapping[str, Array]) -> Params:
        """Put named draws back into the structure of `params`."""
        leaves = [named[name] for name in self.report(self.params)]
        return jax.tree.unflatten(jax.tree.structure(self.params), leaves)

    def identity(self) -> str:
        """Name weights and settings; `trace` identifies what `apply` computes."""
        shapes = {name: np.shape(leaf) for name, leaf in self.report(self.params).items()}
        settings = (self.likelihood, self.noise_scale, self.prior_scale, self.scale)
        return f"Network({shapes}, {settings})"

    def check(self, rows: Rows) -> None:
        """Try the network on the first rows, so that mistakes surface before any long work."""
        super().check(rows)
        count = min(len(rows), 8)
        try:
            batch = rows.slice(0, count)
            outputs = jax.eval_shape(
                lambda p, x: self.outputs(p, self._inputs(p, {"x": x})), self.params, batch["x"]
            ).shape
        except Exception as fault:
            raise SettingError(
                f"apply fails on the first rows ({fault_text(fault)}); it is called with x of "
                f"shape {(count, *rows.fields['x'])}."
            ) from fault
        self._check_outputs(outputs, count, rows)

    def output_size(self, rows: Rows) -> int:
        """Number of outputs that the outcomes need at least."""
        return 1 if self.likelihood == "gaussian" else max(2, 1 + largest_class(rows))

    def _check_outputs(self, shape: tuple[int, ...], count: int, rows: Rows) -> None:
        size = self.output_size(rows)
        if self.likelihood == "gaussian":
            if shape not in ((count,), (count, 1)):
                raise SettingError(
                    f"apply must return one mean per row, but for {count} rows its shape is "
                    f"{shape}."
                )
        elif len(shape) != 2 or shape[0] != count:
            raise SettingError(
                f"apply must return a vector of logits per row, but for {count} rows its shape is "
                f"{shape}."
            )
        elif shape[1] < size:
            raise DataError(
                f"the outcome has {size} classes, but the network has {shape[1]} outputs; give it "
                "one output per class."
            )

    def _check_params(self) -> None:
        leaves = jax.tree.leaves(self.params)
        if not leaves or not all(_is_floating(leaf) for leaf in leaves):
            raise SettingError(
                "params must be a pytree of floating-point arrays; separate the weights from the "
                "rest first (Equinox: eqx.partition(net, eqx.is_inexact_array); Flax NNX: "
                "nnx.split(net, nnx.Param, ...))."
            )
        if len(self.report(self.params)) < len(leaves):
            raise SettingError("two weights of params have the same name; rename one of them.")


def _is_floating(leaf: object) -> bool:
    return isinstance(leaf, float | np.ndarray | jax.Array) and bool(
        jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
    )
