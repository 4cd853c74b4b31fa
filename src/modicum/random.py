"""Every random stream of a run, named by its purpose.

One purpose, one stream: two purposes that shared one would silently be correlated. Numbers
for the host come from NumPy, which has nothing to compile. Keys for the device are typed, of one
fixed generator, so that neither a user's `JAX_DEFAULT_PRNG_IMPL` nor `jax_threefry_partitionable`
of another version changes a draw.
"""

from __future__ import annotations

from enum import IntEnum, unique

import jax
import numpy as np

from modicum.errors import whole_number

__all__ = ["IMPL", "Stream", "chain_keys", "fresh_seed", "generator", "key", "typed"]

IMPL = "threefry2x32"


@unique
class Stream(IntEnum):
    """What random numbers of the host are for. A number in use never changes."""

    MODE_SUBSET = 0  # rows on which the search for the mode starts
    PILOT_DRAWS = 1  # points about the anchor at which residuals are studied
    PILOT_ROWS = 2  # rows whose residuals are studied there
    BRIGHTNESS = 3  # points at which FlyMC's bright rows are counted
    STEP_SEARCH = 4  # points at which a stochastic gradient's noise is measured
    PAPER_SUBSET = 5  # rows of the HMC-ECS paper's first anchor
    CLUSTERS = 6  # first centres of a stratified design's clusters
    SCORE_ROWS = 7  # rows from which scores of the posterior are estimated
    NOISE_ROWS = 8  # batches by which a stochastic gradient's noise is measured before the run
    SIGN_BATCHES = 9  # mini-batches of the pilot by which signs are foretold
    NOISE_ROWS_AFTER = 10  # and after it
    PILOT_CHAINS = 11  # short chains on the pilot rows, before those of the run
    MODE_STARTS = 14  # points from which other modes are looked for
    MODE_ROWS = 15  # rows on which they are
    NODE_CHECK = 21  # groups and points at which quadrature is checked
    EFFECTS = 22  # effects of groups that were integrated out
    LEFT_OUT_ROWS = 30  # rows that are left out, one at a time
    EVIDENCE = 31  # points at which the evidence is summed up
    OUTCOMES = 32  # outcomes drawn of the posterior predictive distribution
    CHECKED_ROWS = 33  # rows that stand for all in pictures and checks
    PRIOR_DRAWS = 34  # parameters drawn from their priors
    LEFT_OUT_POINTS = 35  # points by which rows are left out that draws cannot leave out
    MODEL_WEIGHTS = 36  # the Bayesian bootstrap of models that are compared
    COUNTED_ROWS = 37  # which of the rows that a weighted row stands for are checked
    DIGEST_ROWS = 40  # rows that a digest keeps
    COORDINATE_ROWS = 50  # rows by which coordinates of control variates are chosen
    STUDY_DRAWS = 60  # points at which residuals are studied, the same in every run
    STUDY_ROWS = 61  # rows whose residuals are studied there, the same in every run
    NORMALITY = 70  # points at which the normal approximation is compared with the posterior
    DISPERSED = 71  # where chains start that need no mode
    FIRST_STEP = 72  # momenta by which their first step size is found
    LAPLACE_DRAWS = 73  # draws of the normal approximation that are weighted
    LAPLACE_ROWS = 74  # rows that weigh them
    LAPLACE_ACCEPT = 75  # which of them an independence sampler accepts
    MEAN_SUBSET = 76  # rows on which short chains look for the posterior mean
    MEAN_POINTS = 77  # draws of theirs, at which gradients of all rows are averaged


def generator(seed: int, purpose: Stream) -> np.random.Generator:
    """The stream of `purpose` in a run with this seed, for numbers on the host.

    Examples
    --------
    >>> first = generator(1, Stream.PILOT_ROWS).random()
    >>> first == generator(1, Stream.PILOT_ROWS).random()
    True
    >>> first == generator(1, Stream.CLUSTERS).random()
    False
    """
    return np.random.default_rng([whole_number("random_seed", seed, 0), int(purpose)])


def key(seed: int, purpose: Stream) -> jax.Array:
    """The stream of `purpose` in a run with this seed, as a key for the device."""
    words = np.random.SeedSequence([seed, int(purpose)]).generate_state(2)
    return typed(jax.device_put(words))  # which compiles nothing


def chain_keys(seed: int, chains: int, *stage: int) -> np.ndarray:
    """One key per chain, as the two words of each; every bit of the seed counts.

    Chains that run before those of the draws have a `stage`. NumPy makes the words, since JAX would
    have to be compiled for it; `typed` makes JAX's keys of them.
    """
    sources = (np.random.SeedSequence(seed, spawn_key=(*stage, c)) for c in range(chains))
    return np.stack([source.generate_state(2) for source in sources])


def typed(words: jax.Array) -> jax.Array:
    """Words of the generator as JAX's keys."""
    return jax.random.wrap_key_data(words, impl=IMPL)


def fresh_seed() -> int:
    """A seed that nobody chose."""
    return int(np.random.SeedSequence().generate_state(1)[0])
