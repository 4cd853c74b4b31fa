"""The pilot study of a FlyMC run: the collapsed bounds, and which and how many rows are bright."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from math import ceil, sqrt
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from modicum.estimators import BoundedRows, collapse, whitened_sums
from modicum.estimators.bounds import Collapsed, bound_of
from modicum.kernels.base import BoundSums
from modicum.kernels.flymc import Candidates, FlyContext
from modicum.methods.base import Task, Tuning
from modicum.models.base import Batch
from modicum.passes import Anchor
from modicum.random import Stream, generator
from modicum.runtime import Array, jit, to_device

FAR_DRAWS, PILOT_DRAWS = 4, 16
FAR = 3.0  # the radius of a standard normal exceeds sqrt(d) + 3 once in 20,000 draws or more
FEWEST_TRIED = 32  # fewest rows that an update tries: fewer would save nothing
MARGIN = 8  # extra room for a count, in its standard deviations


class Lit(Protocol):
    """The settings of FlyMC that a study depends on."""

    @property
    def tuned(self) -> bool:
        """Whether bounds are tight at the mode."""
        ...

    @property
    def update(self) -> str:
        """How lights are updated."""
        ...

    @property
    def rate(self) -> float | None:
        """Probability with which an update tries a row, if set by hand."""
        ...

    @property
    def capacity(self) -> int | None:
        """Room for bright rows, if set by hand."""
        ...


class _PassResults(NamedTuple):
    """The results of two passes, which a checkpoint saves."""

    collapsed: Collapsed
    start: Candidates
    bright: float  # expected number of bright rows
    most: float

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray]) -> _PassResults:
        return cls(
            Collapsed(*(arrays[name] for name in Collapsed._fields)),
            Candidates(*(to_device(arrays[name]) for name in Candidates._fields)),
            float(arrays["bright"]),
            float(arrays["most"]),
        )


@dataclass
class FlyStudy:
    """The bounds of one run and the brightness of its rows."""

    method: Lit
    task: Task
    anchor: Anchor
    steps: int  # expected gradients of a move
    bounded: BoundedRows = field(init=False)
    context: FlyContext = field(init=False)

    def __post_init__(self) -> None:
        target = self.task.target
        self.bounded = BoundedRows(target, bound_of(target.model), self.method.tuned)
        pass_results = self.task.remember("bound", self._collapse, _PassResults.from_arrays)
        self.n = len(self.task.rows)
        self.bright, self.most = pass_results.bright, pass_results.most
        candidates = int(np.sum(np.asarray(pass_results.start.number) < self.n))
        self.task.ledger.add("start", self.task.chains * candidates, "density")
        self.context = FlyContext(
            bound=whitened_sums(self.anchor, pass_results.collapsed),
            n=jnp.asarray(self.n),
            rate=jnp.asarray(self.rate),
            start=pass_results.start,
        )

    def _collapse(self) -> dict[str, np.ndarray]:
        """Make two passes: for the sum of all bounds, and for how bright each row may get."""
        task = self.task
        collapsed = collapse(task.sums, self.bounded, self.anchor)
        bound = whitened_sums(self.anchor, collapsed)
        rng = generator(task.seed, Stream.BRIGHTNESS)
        pilot = rng.standard_normal((PILOT_DRAWS, task.target.size))
        # Tuned rows get brighter away from the mode, so look farther out than chains usually go.
        far = rng.standard_normal((FAR_DRAWS, task.target.size))
        far *= (sqrt(task.target.size) + FAR) / np.linalg.norm(far, axis=1, keepdims=True)
        task.ledger.add("bright", len(task.rows) * len(far), "density", passes=1)
        brightest = task.sums.engine.map_rows(
            partial(_brightest, self.bounded), (bound, far), task.rows, "bright"
        )
        start = _candidates(brightest, rng)
        expected = self._expected(start, bound, pilot)
        most = np.sum(brightest, dtype=np.float64)
        sums = {name: np.asarray(values) for name, values in collapsed._asdict().items()}
        return sums | start | {"bright": np.asarray(expected), "most": np.asarray(most)}

    def _expected(self, start: dict[str, np.ndarray], bound: BoundSums, pilot: np.ndarray) -> float:
        """Estimate the number of bright rows from candidates, kept with known probabilities."""
        batch = self.task.rows.take(start["row_ids"])
        bright = np.asarray(_mean_brightness(self.bounded, bound, batch, pilot))
        is_row = start["number"] < len(self.task.rows)
        self.task.ledger.add("bright", int(is_row.sum()) * len(pilot), "density")
        return float(np.sum(np.where(is_row, bright / start["chance"], 0.0)))

    @property
    def share(self) -> float:
        """Expected share of bright rows."""
        return self.bright / self.n

    @property
    def rate(self) -> float:
        """Probability with which an update tries a row."""
        if self.method.rate is not None:
            return float(self.method.rate)
        if self.method.update == "explicit":
            return 0.1  # Maclaurin and Adams 2014, section 3.2
        # A larger rate mixes the lights faster but tries more rows: a compromise.
        return min(0.5, max(self.share * (self.steps + 1), FEWEST_TRIED / self.n))

    @property
    def proposals(self) -> int:
        """Room for the rows an update tries."""
        return min(self.n, _with_margin(self.n * self.rate))

    @property
    def capacity(self) -> int:
        """Room for bright rows."""
        by_hand = self.method.capacity
        return min(self.n, _with_margin(self.most)) if by_hand is None else int(by_hand)

    @property
    def floats_per_iteration(self) -> int:
        """Floats that an iteration holds for the rows it tries."""
        fields = sum(int(np.prod(shape)) for shape in self.task.rows.fields.values())
        return self.proposals * (2 * fields + self.task.target.size + 4)

    def explain(self) -> Tuning:
        """Describe every setting with its reason."""
        by_hand, method = "set by hand", self.method
        rate = "tries as many rows as a move evaluates, and at least 32"
        if method.update == "explicit":
            rate = "as in the paper"
        return {
            "bright": f"{self.bright:.3g} of {self.n:,} rows expected ({self.share:.2%})",
            "bound": {
                "value": "tuned" if method.tuned else "untuned",
                "why": "each row's bound is tight at the mode"
                if method.tuned
                else "the same bound for all rows, as set by hand",
            },
            "rate": {"value": self.rate, "why": rate if method.rate is None else by_hand},
            "capacity": {
                "value": self.capacity,
                "why": "room for the rows that are bright far out in the posterior, and more"
                if method.capacity is None
                else by_hand,
            },
        }


def _with_margin(expected: float) -> int:
    """Return the room for a count, at least 64 and rounded up to a quarter of a power of two.

    Every shape is compiled, and runs that differ only in their seed should share compiled code.
    """
    most = max(64, ceil(expected + MARGIN * sqrt(expected) + MARGIN))
    step = 2 ** (most.bit_length() - 3)
    return ceil(most / step) * step


def _candidates(brightest: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Keep each row with a probability equal to its largest brightness seen so far."""
    n = len(brightest)
    chosen = np.flatnonzero(rng.random(n, dtype=np.float32) < brightest)
    filled = np.full(max(1, _with_margin(len(chosen)) - len(chosen)), n)  # n: no row
    number = np.concatenate([chosen, filled])
    row_ids = np.minimum(number, n - 1)
    chance = np.where(number < n, brightest[row_ids], 1.0).astype(np.float64)
    return {"row_ids": row_ids, "number": number, "chance": chance}


def _brightness(bounded: BoundedRows, bound: BoundSums, batch: Batch, pilot: Array) -> jax.Array:
    """Return the probability that each row is bright at each point: 1 - B/L = 1 - e^-gap."""
    rows = bounded.cache(batch, bound.point)

    def brightness(z: jax.Array) -> jax.Array:
        return jax.nn.sigmoid(bounded.log_ratio(rows, z, bound))

    return jax.lax.map(brightness, pilot)


@jit(static=0)
def _brightest(
    bounded: BoundedRows, arguments: tuple[BoundSums, Array], batch: Batch, present: Array
) -> jax.Array:
    del present
    bound, pilot = arguments
    return jnp.max(_brightness(bounded, bound, batch, pilot), axis=0)


@jit(static=0)
def _mean_brightness(
    bounded: BoundedRows, bound: BoundSums, batch: Batch, pilot: Array
) -> jax.Array:
    return jnp.mean(_brightness(bounded, bound, batch, pilot), axis=0)
