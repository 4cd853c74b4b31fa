"""Digests of what a user's functions compute, taken from the expression that JAX traces.

Globals and closures are not part of a function's source, yet they are part of a model. The traced
expression holds them as constants, so two models are equal if they compute the same, and a model
whose global has changed since its last fit is a different one.

Two things are invisible: what a host callback (`jax.pure_callback`) does, and changes to a helper
compiled with `jax.jit`, whose trace JAX caches.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from typing import Generic, ParamSpec, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, Var, jaxpr_as_fun
from jax.typing import ArrayLike

from modicum.errors import ModicumError, SettingError, fault_text
from modicum.random import IMPL
from modicum.rows import Rows
from modicum.runtime import FASTEST_COMPILE, Array, Pytree, in_double_precision, jit

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


@contextmanager
def explained(
    why_failed: Callable[[str], str],
    missing: Callable[[str], str] | None = None,
    kind: type[ModicumError] = SettingError,
) -> Iterator[None]:
    """Explain why a user's function fails; `missing` explains a name it looks up in vain."""
    try:
        yield
    except ModicumError:
        raise
    except Exception as fault:
        if missing is not None and isinstance(fault, KeyError):
            raise SettingError(missing(str(fault))) from fault
        raise kind(why_failed(fault_text(fault))) from fault


ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # in a repr; differs between processes
MEANINGLESS = {"name", "debug_info"}  # parameters of an operation that do not change its result


@dataclass(frozen=True)
class Trace:
    """A summary of what a model computes.

    Attributes
    ----------
    digest
        Digest of the traced expressions with their constants. It is the same in every process with
        one version of JAX, whatever the names and source files of the functions.
    captured_bytes
        Size of the arrays that the functions have captured, which are compiled as constants.
    """

    digest: str
    captured_bytes: int


@dataclass(frozen=True, eq=False)
class AsTraced(Generic[T]):
    """A user's function or model, compared by what it computes now: a global it reads may change.

    Functions compiled with it as a static argument are compiled again only if that has changed.
    """

    traced: T
    digest: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AsTraced) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)


def evaluated(function: Callable[..., Pytree], *arguments: Pytree) -> list[jax.Array]:
    """Evaluate a function that is not worth optimising; return its results as a flat list.

    Functions that compute the same are compiled once.
    """
    expression = jax.make_jaxpr(function)(*arguments)
    as_traced = AsTraced(expression, digest_of(expression)[0])
    return _evaluated(as_traced, *jax.tree.leaves(arguments))


@jit(static=0, options=FASTEST_COMPILE)
def _evaluated(expression: AsTraced[ClosedJaxpr], *arguments: Array) -> list[jax.Array]:
    return jaxpr_as_fun(expression.traced)(*arguments)


LogPrior: TypeAlias = Callable[[Pytree], jax.Array]
LogLikelihood: TypeAlias = Callable[[Pytree, Mapping[str, Array]], jax.Array]


@in_double_precision
def trace_of(
    log_prior: LogPrior,
    log_likelihood: LogLikelihood,
    theta: Pytree,
    rows: Rows,
    random_start: Callable[[jax.Array], Pytree] | None = None,
) -> Trace:
    """Trace functions and their gradients on a few rows shaped like `rows`.

    Gradients are traced because a function may define its own derivative (`jax.custom_jvp`).

    Raises
    ------
    SettingError
        If the functions cannot be traced, or compute something different every time.
    """
    first = rows.slice(0, min(len(rows), 8))
    shapes, batch = jax.eval_shape(lambda *trees: trees, theta, first)
    functions = (log_prior, log_likelihood)
    digest, captured = _digest_once(*functions, shapes, batch)
    if _digest_once(*functions, shapes, batch)[0] != digest:
        raise SettingError(
            "the model's functions compute something different each time they are traced, so "
            "there is no posterior to sample; take Python's or NumPy's random numbers, the clock "
            "and counters out of log_prior and log_likelihood."
        )
    if random_start is not None:
        digest = _joined(digest, _start_digest(random_start))
    return Trace(digest, captured)


def _digest_once(
    log_prior: LogPrior, log_likelihood: LogLikelihood, theta: Pytree, batch: Pytree
) -> tuple[str, int]:
    """Digest both functions, in fresh wrappers: JAX caches the traces of functions it has seen."""

    def prior(theta: Pytree) -> tuple[jax.Array, Pytree]:
        return jax.value_and_grad(lambda t: log_prior(t))(theta)

    def likelihood(theta: Pytree, batch: Pytree) -> tuple[jax.Array, Pytree]:
        values, pull_back = jax.vjp(lambda t: log_likelihood(t, batch), theta)
        return values, pull_back(jnp.ones_like(values))

    fails = (
        "the model's functions cannot be differentiated ({}); write them with jax.numpy, and use "
        "jax.lax.scan instead of jax.lax.while_loop."
    )
    with explained(fails.format):
        parts = (expression_digest(prior, theta), expression_digest(likelihood, theta, batch))
    return _joined(*(digest for digest, _ in parts)), sum(size for _, size in parts)


def _start_digest(random_start: Callable[[jax.Array], Pytree]) -> str:
    key = jax.eval_shape(lambda: jax.random.key(0, impl=IMPL))
    try:
        return expression_digest(lambda key: random_start(key), key)[0]
    except Exception:  # a method that uses it will say so
        return "untraceable"


def expression_digest(function: Callable[..., Pytree], *arguments: Pytree) -> tuple[str, int]:
    """Return a digest of what `function` computes, and the bytes of the arrays it has captured.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> def by(scale):
    ...     return lambda x: jnp.sum(x) / scale
    >>> expression_digest(by(2.0), 1.0) == expression_digest(by(2.0), 1.0)
    True
    >>> expression_digest(by(2.0), 1.0) == expression_digest(by(3.0), 1.0)
    False
    """
    return digest_of(jax.make_jaxpr(function)(*arguments))


def digest_of(expression: ClosedJaxpr) -> tuple[str, int]:
    """Return the digest of a traced expression, and the bytes of the arrays it holds."""
    writer = _Writer()
    writer.closed(expression)
    return writer.hash.hexdigest(), writer.captured


class _Writer:
    """Feeds an expression to a hash; its printed form would leave out the contents of arrays."""

    def __init__(self) -> None:
        self.hash = blake2b(digest_size=12)
        self.captured = 0

    def text(self, *words: object) -> None:
        self.hash.update(ADDRESS.sub("", "|".join(map(str, words))).encode() + b"\n")

    def array(self, value: ArrayLike) -> None:
        if jnp.issubdtype(jax.dtypes.result_type(value), jax.dtypes.prng_key):
            self.text(jax.random.key_impl(value))
            value = jax.random.key_data(value)
        plain = np.asarray(value)
        self.captured += plain.nbytes
        self.text(plain.dtype, plain.shape)
        self.hash.update(np.ascontiguousarray(plain).tobytes())

    def closed(self, closed: ClosedJaxpr) -> None:
        for constant in closed.consts:
            self.array(constant)
        self.jaxpr(closed.jaxpr)

    def jaxpr(self, jaxpr: Jaxpr) -> None:
        numbers: dict[Var, int] = {}

        def variable(atom: Var | Literal) -> None:
            if isinstance(atom, Literal):
                self.text("literal", atom.aval)
                self.array(atom.val)
            else:
                self.text(numbers.setdefault(atom, len(numbers)), atom.aval)

        for argument in (*jaxpr.constvars, *jaxpr.invars):
            variable(argument)
        for equation in jaxpr.eqns:
            self.text(equation.primitive.name)
            for name, value in sorted(equation.params.items()):
                if name not in MEANINGLESS:
                    self.text(name)
                    self.parameter(value)
            for atom in (*equation.invars, *equation.outvars):
                variable(atom)
        self.text("out")
        for result in jaxpr.outvars:
            variable(result)

    def parameter(self, value: object) -> None:
        if isinstance(value, ClosedJaxpr):
            self.closed(value)
        elif isinstance(value, Jaxpr):
            self.jaxpr(value)
        elif isinstance(value, tuple | list):
            self.text(len(value))
            for item in value:
                self.parameter(item)
        elif isinstance(value, np.ndarray | jax.Array):
            self.array(value)
        elif callable(value) and not isinstance(value, type):
            self.text(type(value).__name__)  # a differentiation rule, whose result is traced
        else:
            self.text(repr(value))


def uncompiled(function: Callable[P, R]) -> Callable[P, R]:
    """Undo `jax.jit`: compiled code would keep using the globals of its first call."""
    while isinstance(function, jax.stages.Wrapped) and hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function


def _joined(*digests: str) -> str:
    return blake2b(" ".join(digests).encode(), digest_size=12).hexdigest()
