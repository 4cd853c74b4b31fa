"""The random streams of a run, named by purpose.

Each purpose has its own stream: two purposes that shared one would silently be correlated. Random
numbers for the host come from NumPy, which needs no compilation. Keys for the device are typed keys
of a fixed generator, so that neither a user's `JAX_DEFAULT_PRNG_IMPL` nor another JAX version's
default of `jax_threefry_partitionable` changes a draw.
"""

from __future__ import annotations

from enum import IntEnum, unique

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import threefry_2x32
from jax.typing import DTypeLike

from modicum.errors import whole_number

IMPL = "threefry2x32"


@unique
class Stream(IntEnum):
    """Purposes of random numbers drawn on the host. A number in use must never change."""

    MODE_SUBSET = 0  # rows with which the search for the mode starts
    PILOT_DRAWS = 1  # points about the anchor at which residuals are studied
    PILOT_ROWS = 2  # rows whose residuals are studied there
    BRIGHTNESS = 3  # points at which FlyMC's bright rows are counted
    STEP_SEARCH = 4  # points at which a stochastic gradient's noise is measured
    PAPER_SUBSET = 5  # rows of the HMC-ECS paper's first anchor
    CLUSTERS = 6  # first centres of a stratified design's clusters
    SCORE_ROWS = 7  # rows from which scores of the posterior are estimated
    NOISE_ROWS = 8  # batches that measure a stochastic gradient's noise before the run
    SIGN_BATCHES = 9  # mini-batches of the pilot that predict the signs
    NOISE_ROWS_AFTER = 10  # batches that measure a stochastic gradient's noise after the run
    PILOT_CHAINS = 11  # short chains on the pilot rows, before the chains of the run
    MODE_STARTS = 14  # starting points of the search for other modes
    MODE_ROWS = 15  # rows used in the search for other modes
    NODE_CHECK = 21  # groups and points at which quadrature is checked
    EFFECTS = 22  # group effects that were integrated out
    NEW_GROUPS = 23  # effects of groups that the fit did not have
    LEFT_OUT_ROWS = 30  # rows for leave-one-out cross-validation
    EVIDENCE = 31  # points at which the evidence is estimated
    OUTCOMES = 32  # outcomes drawn from the posterior predictive distribution
    CHECKED_ROWS = 33  # rows that represent the data set in plots and checks
    PRIOR_DRAWS = 34  # parameters drawn from their priors
    LEFT_OUT_POINTS = 35  # points for left-out rows that importance weights cannot handle
    MODEL_WEIGHTS = 36  # the Bayesian bootstrap of model comparisons
    COUNTED_ROWS = 37  # which of the rows behind a weighted row are checked
    RESAMPLING = 38  # which weighted draws are repeated to get equally weighted ones
    FOLDS = 39  # rows of each fold of a cross-validation
    DIGEST_ROWS = 40  # rows that a digest keeps
    QUANTILES = 41  # places among equal predicted outcomes, and within those hidden by censoring
    COORDINATE_ROWS = 50  # rows that choose the coordinates of control variates
    STUDY_DRAWS = 60  # points at which residuals are studied, the same in every run
    STUDY_ROWS = 61  # rows whose residuals are studied there, the same in every run
    LEVERAGES = 62  # probes that estimate leverages in many columns, the same in every run
    NORMALITY = 70  # points at which the normal approximation is compared with the posterior
    DISPERSED = 71  # starting points of chains that need no mode
    FIRST_STEP = 72  # momenta for finding the first step size of those chains
    LAPLACE_DRAWS = 73  # draws from the normal approximation, to be weighted
    LAPLACE_ROWS = 74  # rows that determine the weights of these draws
    LAPLACE_ACCEPT = 75  # which of these draws an independence sampler accepts
    LAPLACE_SCALES = 80  # scales that weigh most, where others are drawn
    MEAN_SUBSET = 76  # rows for the short chains that estimate the posterior mean
    MEAN_POINTS = 77  # draws of these chains at which gradients of all rows are averaged
    MODE_DRAWS = 79  # coefficients given the scales at their mode, to be checked there
    SKEWNESS = 78  # points that decide whether skewed axes are looked for on all rows


def generator(seed: int, purpose: Stream) -> np.random.Generator:
    """Return the random generator for `purpose` in a run with this seed.

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
    """Return a JAX key for `purpose` in a run with this seed."""
    words = np.random.SeedSequence([seed, int(purpose)]).generate_state(2)
    return typed(jax.device_put(words))  # device_put compiles nothing


def chain_keys(seed: int, chains: int, *stage: int) -> np.ndarray:
    """Return one key per chain, as an array of two words each; every bit of the seed counts.

    Chains that run before the chains of the draws have a `stage`. The words come from NumPy, since
    JAX would have to compile; `typed` turns them into JAX keys.
    """
    sources = (np.random.SeedSequence(seed, spawn_key=(*stage, c)) for c in range(chains))
    return np.stack([source.generate_state(2) for source in sources])


def typed(words: jax.Array | np.ndarray) -> jax.Array:
    """Turn words into typed JAX keys."""
    return jax.random.wrap_key_data(jnp.asarray(words), impl=IMPL)


# Keys of iterations ------------------------------------------------------------------------

# The keys of an iteration are for choosing its rows, and for its step: the generator's blocks
# (iteration, 0) and (iteration, 1). Folding in and splitting would call it twice. Few of them come
# from NumPy, since each call of the generator takes a tenth of a second to compile.


def iteration_keys(
    chain_key: jax.Array | np.ndarray, iteration: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return the two keys of an iteration, in compiled functions."""
    number = jnp.asarray(iteration).astype(jnp.uint32)
    counts = jnp.stack([number, number, jnp.uint32(0), jnp.uint32(1)])
    rows_key, step_key = threefry_2x32(chain_key, counts).reshape(2, 2).T
    return typed(rows_key), typed(step_key)


def words_of_iterations(chain_keys: np.ndarray, iterations: np.ndarray) -> np.ndarray:
    """Return the words of the same keys on the host, (..., iteration, 2 keys, 2 words).

    Examples
    --------
    >>> import jax
    >>> import numpy as np
    >>> from modicum.random import iteration_keys, words_of_iterations
    >>> chain = np.array([3, 4], np.uint32)
    >>> of_rows, of_step = words_of_iterations(chain, np.array([7]))[0]
    >>> bool((jax.random.key_data(iteration_keys(chain, 7)[1]) == of_step).all())
    True
    """
    numbers = np.asarray(iterations).astype(np.uint32)[:, None]
    return _threefry(chain_keys[..., None, None, :], numbers, np.arange(2, dtype=np.uint32))


def words_at_start(chain_keys: np.ndarray) -> np.ndarray:
    """Return the words of the two keys with which chains begin, (..., 2 keys, 2 words)."""
    return words_of_iterations(chain_keys, np.array([2**32 - 1]))[..., 0, :, :]


ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)


def _threefry(key: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Encrypt blocks (left, right) by Threefry-2x32 with 20 rounds, as JAX does."""
    first, second = np.moveaxis(key.astype(np.uint32), -1, 0)
    schedule = first, second, first ^ second ^ np.uint32(0x1BD11BDA)
    left, right = left + first, right + second
    for number in range(5):
        for by in ROTATIONS[number % 2]:
            left = left + right
            right = left ^ (right << np.uint32(by) | right >> np.uint32(32 - by))
        left = left + schedule[(number + 1) % 3]
        right = right + schedule[(number + 2) % 3] + np.uint32(number + 1)
    return np.stack([left, right], axis=-1)


# Numbers of steps --------------------------------------------------------------------------

# Each call of the generator costs compile time, a tenth of a second. So a step of a chain calls it
# once, for uniform numbers, which are then turned into what the step needs.


def symmetric_uniforms(key: jax.Array, shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
    """Draw uniform numbers from (-1, 1), without its ends."""
    above = jnp.nextafter(jnp.array(-1, dtype), jnp.array(0, dtype))
    return jax.random.uniform(key, shape, dtype, above, 1)


def normal(symmetric: jax.Array) -> jax.Array:
    """Turn uniform numbers from (-1, 1) into standard normal ones, as `jax.random.normal` does."""
    return jnp.sqrt(jnp.array(2, symmetric.dtype)) * jax.lax.erf_inv(symmetric)


def log_uniform(symmetric: jax.Array) -> jax.Array:
    """Turn uniform numbers from (-1, 1) into logarithms of uniform numbers from (0, 1)."""
    return jnp.log((1 + symmetric) / 2)


def unrelated_key(key: jax.Array, number: int = 0) -> jax.Array:
    """Return a key that is independent of the numbers drawn from `key` itself.

    The generator encrypts a counter, which starts at 0 for the numbers, and is far from it here.
    """
    return jax.random.fold_in(key, 2**32 - 1 - number)


def fresh_seed() -> int:
    """Return a seed from the operating system's entropy."""
    return int(np.random.SeedSequence().generate_state(1)[0])
