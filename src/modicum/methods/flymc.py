"""FlyMC: Firefly Monte Carlo, exact sampling that evaluates only bright rows.

Two passes collapse the bounds of all rows and find which and how many rows are bright; the kernel
then moves the parameters and switches the lights in turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from math import ceil, sqrt
from typing import Annotated, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from modicum.arguments import BelowOne, Bytes, Count, Positive, Share
from modicum.arrays import as_either
from modicum.diagnostics import ess
from modicum.errors import ModicumWarning, SettingError, listed
from modicum.kernels.bounds import (
    BoundedRows,
    BoundSums,
    Collapsed,
    bound_of,
    collapse,
    whitened_sums,
)
from modicum.kernels.firefly import Candidates, FlyContext, FlyKernel
from modicum.kernels.moves import (
    HMCMove,
    NUTSMove,
    RandomWalkMove,
    schedule,
    typical_step_size,
)
from modicum.kernels.protocols import Move
from modicum.methods.method import Chosen, Method, Outcome, OwnMove, Plan, Task, Tuning, account
from modicum.models.model import DENSE_LIMIT, Batch
from modicum.passes import Anchor
from modicum.random import Stream, generator
from modicum.run.iterations import place_rows
from modicum.run.runner import History
from modicum.runtime import Array, in_double_precision, jit, to_device

FAR_DRAWS, PILOT_DRAWS = 4, 16
FAR = 3.0  # the radius of a standard normal exceeds sqrt(d) + 3 once in 20,000 draws or more
FEWEST_TRIED = 32  # fewest rows that an update tries: fewer would save nothing
MARGIN = 8  # extra room for a count, in its standard deviations


class Lights(NamedTuple):
    """What two passes tell about the rows; a checkpoint keeps it."""

    collapsed: Collapsed  # the sum of all bounds
    start: Candidates  # rows that may be bright when chains start
    bright: float  # expected number of bright rows
    most: float  # expected number far out in the posterior


def _find_lights(task: Task, bounded: BoundedRows, anchor: Anchor) -> Lights:
    """Make two passes: for the sum of all bounds, and for how bright each row may get."""
    collapsed = collapse(task.sums, bounded, anchor)
    bound = whitened_sums(anchor, collapsed)
    rng = generator(task.seed, Stream.BRIGHTNESS)
    pilot = rng.standard_normal((PILOT_DRAWS, task.target.size))
    # Tuned rows get brighter away from the mode, so look farther out than chains usually go.
    far = rng.standard_normal((FAR_DRAWS, task.target.size))
    far *= (sqrt(task.target.size) + FAR) / np.linalg.norm(far, axis=1, keepdims=True)
    task.ledger.add("bright", len(task.rows) * len(far), "density", passes=1)
    brightest = task.sums.engine.map_rows(
        partial(_brightest, bounded), (bound, far), task.rows, "bright"
    )
    start = _candidates(brightest, rng)
    # Candidates were kept with known probabilities, and so tell how many rows are bright.
    batch, is_row = task.rows.take(np.asarray(start.row_ids)), start.number < len(task.rows)
    bright = np.asarray(_brightness(bounded, bound, batch, pilot)).mean(axis=0)
    task.ledger.add("bright", int(is_row.sum()) * len(pilot), "density")
    expected = float(np.sum(np.where(is_row, bright / start.chance, 0.0)))
    return Lights(collapsed, start, expected, float(np.sum(brightest, dtype=np.float64)))


def _with_margin(expected: float) -> int:
    """Return the room for a count, at least 64 and rounded up to a quarter of a power of two.

    Every shape is compiled, and runs that differ only in their seed should share compiled code.
    """
    most = max(64, ceil(expected + MARGIN * sqrt(expected) + MARGIN))
    step = 2 ** (most.bit_length() - 3)
    return ceil(most / step) * step


def _candidates(brightest: np.ndarray, rng: np.random.Generator) -> Candidates:
    """Keep each row with a probability equal to its largest brightness seen so far."""
    n = len(brightest)
    chosen = np.flatnonzero(rng.random(n, dtype=np.float32) < brightest)
    filled = np.full(max(1, _with_margin(len(chosen)) - len(chosen)), n)  # n: no row
    number = np.concatenate([chosen, filled])
    row_ids = np.minimum(number, n - 1)
    chance = np.where(number < n, brightest[row_ids], 1.0).astype(np.float64)
    return Candidates(*map(as_either, (row_ids, number, chance)))


@jit(static=0)
def _brightness(bounded: BoundedRows, bound: BoundSums, batch: Batch, pilot: Array) -> jax.Array:
    """Return the probability that each row is bright at each point: 1 - B/L = 1 - e^-gap."""
    rows = bounded.cache(batch, bound.where.point)
    return jax.lax.map(lambda z: jax.nn.sigmoid(bounded.log_ratio(rows, z, bound)), pilot)


@jit(static=0)
def _brightest(
    bounded: BoundedRows, arguments: tuple[BoundSums, Array], batch: Batch, present: Array
) -> jax.Array:
    bound, pilot = arguments
    return jnp.max(_brightness(bounded, bound, batch, pilot), axis=0)


@listed
def look_back(capacity: int, history: History) -> Iterator[ModicumWarning]:
    """Warn if bright rows ran out of room, or if the lights changed slowly."""
    stats = history.stats
    refused = int(stats["bright_refused"].sum())
    if refused:
        yield ModicumWarning(
            "bright-full",
            f"{refused} of {stats['n_bright'].size} updates of the lights were refused because "
            f"there is room for only {capacity:,} bright rows, so that parts of the posterior "
            "where more are bright are missing",
            "raise `capacity`",
            refused=refused,
            capacity=capacity,
        )
    bright = stats["n_bright"]
    if bright.shape[1] >= 100 and np.ptp(bright) > 0:
        effective = float(np.nanmin(ess(bright[..., None].astype(float))))
        if effective < 50:
            yield ModicumWarning(
                "lights-slow",
                f"the lights change slowly: the number of bright rows has an effective sample "
                f"size of {effective:.0f} in {bright.size} draws",
                "raise `rate`, or draw more",
                ess=effective,
            )


MOVES: dict[str, Move] = {
    "nuts": NUTSMove(),
    "mala": HMCMove(max_steps=1),
    "random-walk": RandomWalkMove(),
}
ACCEPT = {"mala": 0.574, "random-walk": 0.234}  # rates other than 0.8


@dataclass(frozen=True)
class FlyMC(Method):
    """Firefly Monte Carlo (Maclaurin and Adams 2014), for `Logistic`, `StudentT` and `Softmax`.

    Every row has a light; only bright rows enter a step of the parameters, and the posterior is
    exact. With bounds tuned at the mode few rows are bright; untuned, a few per cent are.

    Parameters
    ----------
    tuned
        Whether each row's bound is tight at the mode, or the same for all rows.
    update
        "implicit": every bright row may go dark, and some dark rows are tried. "explicit": the
        lights of a random share of the rows are drawn anew.
    inner
        The move of the parameters: "hmc", "nuts", "mala", "random-walk", or any `Move`.
    rate
        Probability with which an update tries a row. By default an update tries as many rows as a
        move evaluates ("implicit"), or a tenth of all ("explicit").
    capacity
        The largest number of bright rows; None: chosen by a pilot study.
    trajectory, jitter
        Length of HMC's trajectories in posterior standard deviations, and the share by which each
        is randomly longer or shorter.
    target_accept
        Acceptance rate for which the step size is tuned; None: .8 for "hmc" and "nuts", .574 for
        "mala", .234 for "random-walk".
    step_size
        A fixed step size, in posterior standard deviations; None: tuned during warm-up.
    memory_limit
        Bytes of rows that may be held in memory; rows of larger data sets are read when chains
        need them. By default half of the free memory, or 256 MiB for a row store.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.FlyMC(tuned=False, update="explicit").rate is None
    True
    """

    tuned: bool = True
    update: Literal["implicit", "explicit"] = "implicit"
    inner: Literal["hmc", "nuts", "mala", "random-walk"] | OwnMove = "hmc"
    rate: Annotated[Share | None, "None is the default"] = None
    capacity: Count | None = None
    trajectory: Positive = 1.2
    jitter: BelowOne = 0.0
    target_accept: Annotated[Share | None, "None is the default"] = None
    step_size: Positive | None = None
    memory_limit: Bytes | None = None
    name: ClassVar[str] = "flymc"
    summary: ClassVar[str] = "Firefly Monte Carlo: exact, reads the bright rows only"

    @property
    def accept(self) -> float:
        """The acceptance rate for which the step size is tuned."""
        if self.target_accept is not None:
            return self.target_accept
        return ACCEPT.get(self.inner, 0.8) if isinstance(self.inner, str) else 0.8

    @property
    def move(self) -> Move:
        """The move of the parameters."""
        if self.inner == "hmc":
            return HMCMove(self.trajectory, jitter=self.jitter)
        return MOVES[self.inner] if isinstance(self.inner, str) else self.inner

    @in_double_precision
    def plan(self, task: Task) -> Plan:
        """Find the mode, collapse the bounds, find the bright rows, and compose the kernel."""
        bound_of(task.target.model)  # refuse models without a bound before making any pass
        task.refuse_own_parameters(self.name)
        if task.target.size > DENSE_LIMIT:
            raise SettingError(
                f"FlyMC needs a matrix of all {task.target.size:,} parameters, and the limit is "
                f"{DENSE_LIMIT:,}; use method='nuts' on all rows."
            )
        anchor = task.anchor_at_mode()
        bounded = BoundedRows(task.target, bound_of(task.target.model), self.tuned)
        lights = task.remember("bound", Lights, lambda: _find_lights(task, bounded, anchor))
        n, size = len(task.rows), task.target.size
        # the gradients of a move, at the step size typical of the acceptance rate
        steps = 1 if self.inner in ACCEPT else ceil(self.trajectory / typical_step_size(size))
        first_step = self.step_size
        if first_step is None and self.inner == "random-walk":
            first_step = float(2.38 * size**-0.5)  # optimal for a normal target in many dimensions
        rate = self._rate(lights.bright, n, steps)
        tried = min(n, _with_margin(n * rate))
        capacity = min(n, _with_margin(lights.most)) if self.capacity is None else self.capacity
        candidates = int(np.sum(np.asarray(lights.start.number) < n))
        task.ledger.add("start", task.chains * candidates, "density")
        return Plan(
            kernel=FlyKernel(
                *(bounded, self.move, capacity, tried, self.update, self.accept),
                first_step=first_step,
            ),
            context=FlyContext(
                bound=whitened_sums(anchor, lights.collapsed),
                n=jnp.asarray(n),
                rate=jnp.asarray(rate),
                start=to_device(lights.start),
            ),
            flags=schedule(task.tune, task.draws, False, adapt_step=self.step_size is None),
            anchor=anchor,
            rows=place_rows(task.rows, self.memory_limit).result(),
            floats_per_iteration=tried * (2 * task.floats_per_row + task.target.size + 4),
            tuning=self._explain(lights, n, rate, capacity),
            notes=[*anchor.notes, *self._look_ahead(lights, n, rate, steps)],
            finish=partial(self._finish, capacity),
        )

    def _rate(self, bright: float, n: int, steps: int) -> float:
        """Return the probability with which an update tries a row."""
        if self.rate is not None:
            return float(self.rate)
        if self.update == "explicit":
            return 0.1  # Maclaurin and Adams 2014, section 3.2
        # A larger rate mixes the lights faster but tries more rows: a compromise.
        return min(0.5, max(bright / n * (steps + 1), FEWEST_TRIED / n))

    def _explain(self, lights: Lights, n: int, rate: float, capacity: int) -> Tuning:
        """Describe every setting with its reason."""
        bound = "each row's bound is tight at the mode"
        tries = "tries as many rows as a move evaluates, and at least 32"
        if self.update == "explicit":
            tries = "as in the paper"
        room = "room for the rows that are bright far out in the posterior, and more"
        by_hand = "set by hand"
        return {
            "bright": f"{lights.bright:.3g} of {n:,} rows expected ({lights.bright / n:.2%})",
            "bound": Chosen(value="tuned", why=bound)
            if self.tuned
            else Chosen(value="untuned", why="the same bound for all rows, as set by hand"),
            "rate": Chosen(value=rate, why=tries if self.rate is None else by_hand),
            "capacity": Chosen(value=capacity, why=room if self.capacity is None else by_hand),
        }

    def _look_ahead(
        self, lights: Lights, n: int, rate: float, steps: int
    ) -> Iterator[ModicumWarning]:
        """Warn if so many rows are bright that FlyMC saves little."""
        ours, theirs = n * rate + lights.bright * (steps + 2), n * steps
        if ours <= theirs / 2:
            return
        first = "method='hmc-ecs'" if self.tuned else "tuned=True"
        share = lights.bright / n
        yield ModicumWarning(
            "bright-many",
            f"FlyMC saves little here: {share:.0%} of the rows are expected to be bright, and "
            f"an iteration to evaluate {ours:,.0f} rows, against {theirs:,.0f} for a method on "
            "all rows",
            f"use {first}, or method='nuts' on all rows",
            share=share,
        )

    def _finish(self, capacity: int, task: Task, plan: Plan, history: History) -> Outcome:
        """Record what moves on all rows would have cost, and check the run."""
        account(task, plan, history, self.step_size, self.accept)
        return Outcome(warnings=look_back(capacity, history), target_accept=self.accept)
