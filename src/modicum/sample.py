"""`mo.sample`: draw from the posterior of a model given rows."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, replace
from functools import partial
from hashlib import blake2b
from importlib.metadata import version
from math import ceil
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import jax
import numpy as np

from modicum.arguments import Count, Positive, Rule, at_least, check_settings, names_checked
from modicum.digest import Digest
from modicum.errors import ModicumWarning, SettingError, is_whole, listed, warn, whole_number
from modicum.files import Json
from modicum.ledger import Ledger
from modicum.methods import METHODS, Auto, Method, resolve
from modicum.methods.method import Plan, Task
from modicum.methods.whole_groups import with_fixed_nodes
from modicum.models import BaseModel, Target
from modicum.models.model import DENSE_LIMIT, Params
from modicum.models.target import check_model_and_rows
from modicum.passes import EngineChoice, Starts, Sums, engine_for
from modicum.posterior import FitRows, Posterior
from modicum.posterior.fitted import Rerun, scalar_names, tidy_labels
from modicum.progress import Progressbar, phase, say
from modicum.random import chain_keys, fresh_seed
from modicum.results import WITHOUT_TABLE, Finished, Origin, posterior_of
from modicum.rows import Rows
from modicum.rows.equal_rows import distinct_rows
from modicum.rows.rows import doubtful_weights
from modicum.run.chains import (
    FEW,
    ChainCount,
    ChainHost,
    Chains,
    ChainTasks,
    Layout,
    Parallel,
    auto_layout,
    default_parallel,
)
from modicum.run.checkpoint import Checkpoint
from modicum.run.interrupt import stoppable, within_limits
from modicum.run.iterations import LENGTH
from modicum.run.runner import capacity_for, run
from modicum.runtime import free_memory, in_double_precision, on_accelerator, on_cpu, refuse_forked

FUSED = 256  # most iterations of a fused call: few enough that copying the last ones is short
CAPTURED = 64 * 2**20  # bytes of captured arrays beyond which compilation is slow
LARGEST_SEED = 2**63 - 1
DISPERSED = 10  # starting points for a model about which nothing is known
# An accelerator pays for as many chains of few rows, or for reading all of a table of as many
# bytes: NUTS on 20,000 rows took two thirds of the time on one H200 that it took on 16 cores.
MANY_CHAINS, MANY_BYTES = 32, 2**20

Seed: TypeAlias = Annotated[
    int,
    Rule(
        f"a whole number from 0 to {LARGEST_SEED}",
        lambda v: is_whole(v) and 0 <= v <= LARGEST_SEED,
    ),
]


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """The settings of a run, which every door passes on; `sample` describes them.

    Settings that are wrong for any rows are refused when the record is made, before a large table
    is read.
    """

    method: Method
    draws: Count | None = None
    tune: Annotated[int, at_least(0)] | None = None
    chains: Count | Literal["auto"] = 4
    superchains: Annotated[int, at_least(2)] | None = None
    passes: Positive | None = None
    thin: Count = 1
    random_seed: Seed | None = None
    progressbar: Progressbar = True
    checkpoint: str | os.PathLike[str] | None = None
    parallel: Parallel | None = None
    starts: int | Sequence[Params] | None = None
    engine: EngineChoice | None = None
    collapse: bool | Literal["always"] = False  # whether equal rows are one; see `distinct_rows`

    @classmethod
    def of(cls, asked: Mapping[str, Any]) -> RunSettings:  # arguments of any type
        """Return the settings among the arguments of a door."""
        own = {f.name: asked[f.name] for f in fields(cls) if f.name in asked}
        return cls(**own | {"method": resolve(asked["method"])})

    def __post_init__(self) -> None:
        check_settings(self)
        if self.passes is not None and self.draws is not None:
            raise SettingError("give either draws or passes: each sets the length of the chains.")
        if not isinstance(self.checkpoint, str | os.PathLike | None):
            raise SettingError(
                f"checkpoint must be the path of a folder, not {type(self.checkpoint).__name__}."
            )
        if self.superchains is None:
            return
        if not self.method.of_few_rows:
            raise SettingError(
                f"{self.method.name} may start chains at several modes, and its chains cannot "
                "share starts; leave `superchains` out."
            )
        if self.chains == "auto" or self.chains % self.superchains:
            number = 'chains="auto"' if self.chains == "auto" else f"{self.chains} chains"
            raise SettingError(
                f"{number} cannot be divided into {self.superchains} superchains of equal size; "
                f"set chains to a multiple of {self.superchains}."
            )

    def sampler(self, of_digest: bool = False) -> Method:
        """Return the method; "auto" runs chains if settings of chains are given.

        `tune` is not one of these: users of other libraries give it to every fit.
        """
        method = self.method
        of_chains = (self.parallel, self.superchains) != (None, None)
        if isinstance(method, Auto) and (of_chains or self.thin != 1):
            method = Auto(laplace=False)
        if of_digest:
            if not method.of_digests:
                names = ", ".join(repr(name) for name, cls in METHODS.items() if cls.of_digests)
                raise SettingError(
                    "a digest keeps some of the rows and sums over all of them, which "
                    f"{method.name} cannot use; choose one of {names}, or sample from the rows."
                )
            if self.starts is not None:
                raise SettingError(
                    "a digest is expanded about one mode, so that it cannot be searched for other "
                    "modes; leave `starts` out, or sample from the rows."
                )
        return method

    def lengths(self, method: Method, n: int) -> tuple[int, int]:
        """Return warm-up and draws per chain on `n` rows, both counted in recorded iterations."""
        tune, passes = self.tune, self.passes
        if tune is None:
            tune = 1000 if passes is None and method.has_warmup else 0
        before = ceil(tune / self.thin)
        if passes is None:
            return before, 1000 if self.draws is None else int(self.draws)
        number = method.iterations(passes, n) // int(self.thin) - before
        if number < 1:
            raise SettingError(
                f"{passes:g} passes over {n:,} rows are too few for a single draw after "
                f"{tune} iterations of warm-up; give more passes, or a smaller batch, tune or thin."
            )
        return before, number

    def layout(self, method: Method, draws: int, size: int) -> Layout:
        """Return the layout of the chains; a resumed "auto" run keeps the one it began with."""
        if self.chains != "auto":
            return Layout(int(self.chains), self.superchains)
        saved = self.saved_identity()
        if "chains" in saved:
            return Layout(int(saved["chains"]), saved.get("superchains"))
        return auto_layout(draws, size) if method.of_few_rows else Layout(FEW)

    def place(self, method: Method, rows: Rows | Digest) -> AbstractContextManager[object]:
        """Return the scope in which to compute: beside an accelerator, little work is the CPU's.

        A program for an accelerator takes up to ten seconds longer to compile, which few chains of
        few rows do not repay.
        """
        if method.of_few_rows:
            much = self.chains == "auto" or self.chains >= MANY_CHAINS
        else:
            much = rows.nbytes >= MANY_BYTES
        return nullcontext() if much else on_cpu()

    def seed(self) -> int:
        """Return the seed: as given, else that of the checkpoint to resume, else a fresh one."""
        if self.random_seed is not None:
            return int(self.random_seed)
        saved = self.saved_identity().get("seed")
        return saved if isinstance(saved, int) and 0 <= saved <= LARGEST_SEED else fresh_seed()

    def saved_identity(self) -> dict[str, Json]:
        """Return what the checkpoint says of its run; empty if there is none."""
        return {} if self.checkpoint is None else Checkpoint.saved_identity(self.checkpoint)


@names_checked
def sample(
    model: BaseModel,
    rows: Rows | Digest,
    *,
    method: str | Method | None = "auto",
    draws: int | None = None,
    tune: int | None = None,
    chains: ChainCount = 4,
    superchains: int | None = None,
    passes: float | None = None,
    thin: int = 1,
    random_seed: int | None = None,
    progressbar: Progressbar = True,
    checkpoint: str | os.PathLike[str] | None = None,
    parallel: Parallel | None = None,
    starts: int | Sequence[Params] | None = None,
    engine: EngineChoice | None = None,
) -> Posterior:
    """Draw from the posterior of `model` given `rows`.

    Parameters
    ----------
    model
        A family (`mo.models.Logistic()` ...) or a model of your own (`mo.Model`).
    rows
        The data: `mo.Rows(...)`, `mo.Rows.from_table(...)` or `mo.Rows.open(...)`; or a digest of
        the data (`mo.digest`), which "auto", "laplace", HMC-ECS, HMC and NUTS accept.
    method
        A name ("hmc-ecs", "flymc", "nuts", "hmc", "sgld", "ewsg" ...) or an object with settings
        (`mo.HMCECS(design="uniform")`). The default, "auto", picks the cheapest valid method and
        states its choice in `Posterior.tuning["method"]`: draws from the normal approximation at
        the mode, weighted using a few thousand rows ("laplace"), if the posterior is close enough
        to normal; else HMC-ECS, which touches tens to hundreds of rows per step; else NUTS on all
        rows: if there are too few rows for subsampling to pay, if a pilot study shows that
        subsampling would give a wrong answer, or if several modes or none were found.
    draws, tune
        Draws to keep per chain, and warm-up iterations before them; both default to 1,000. If
        "auto" takes independent draws, there are chains times draws of these and no warm-up.
        Giving `thin`, `parallel` or `superchains` asks for chains: "auto" then chooses between
        HMC-ECS and NUTS.
    chains
        Number of independent chains. "auto" runs 4 on a CPU and for methods that read all rows, and
        on an accelerator 1,024, or as many as fit its memory, in 16 superchains.
    superchains
        Number of groups of chains; the chains of a group share a starting point. Nested R-hat then
        tells whether many short chains have forgotten it. None: every chain has its own start.
    passes
        Length of each chain in place of `draws`: the iterations, warm-up (none by default)
        included, whose gradients cost as much as this many passes over the rows. For methods whose
        iterations all cost the same: those with stochastic gradients.
    thin
        Keep every `thin`-th iteration, so that `draws` draws take `thin` times as many iterations.
        Rows touched by discarded iterations are counted too.
    random_seed
        The same seed gives the same draws, bit for bit, on one machine.
    progressbar
        Whether to show progress on standard error: bars on a terminal, else one line per phase;
        or a function that is called with a `mo.ProgressEvent` at every update.
    checkpoint
        A folder in which state and draws are saved during the run. Repeating the same call after a
        crash resumes from it and gives the same draws.
    parallel
        "threads" (a thread per chain, the default for a few chains on a CPU) or "stacked" (chains
        as one axis of arrays, the default for many chains, and on an accelerator).
    starts
        Number of dispersed points from which to search for modes of the posterior, on about a
        thousand rows; by default 10 for a model of your own and 1 for a family. Or the points
        themselves, a list of parameters in the layout of the model's `init`. HMC and NUTS start
        chains at every mode that holds at least 1% of the posterior, by Laplace's approximation;
        for the other methods a warning says what they leave out.
    engine
        What computes the passes over all rows: `mo.engines.Local()`, the default, or the workers of
        a cluster, `mo.engines.Ray(address=...)`. Draws do not depend on it.

    Returns
    -------
    Posterior
        Interrupting the run with Ctrl-C returns the draws so far.

    Examples
    --------
    >>> import numpy as np, modicum as mo
    >>> rng = np.random.default_rng(1)
    >>> x = rng.normal(size=(500, 2))
    >>> y = rng.random(500) < 1 / (1 + np.exp(-x[:, 0]))
    >>> post = mo.sample(
    ...     mo.models.Logistic(), mo.Rows(x=x, y=y, columns=["dose", "age"]),
    ...     draws=500, tune=300, random_seed=1, progressbar=False,
    ... )
    >>> list(post.summary().index)
    ['beta[dose]', 'beta[age]', 'intercept']
    """
    asked = dict(locals())
    return repeatable(draw(model, rows, RunSettings.of(asked)), sample, asked)


@in_double_precision
def draw(
    model: BaseModel, rows: Rows | Digest, settings: RunSettings, origin: Origin = WITHOUT_TABLE
) -> Posterior:
    """Draw from the posterior as the settings say; a fit adds the `origin` of its rows."""
    refuse_forked()
    digest = rows if isinstance(rows, Digest) else None
    members = check_model_and_rows(model, rows if digest is None else digest.pool.rows)
    method, thin = settings.sampler(digest is not None), int(settings.thin)
    progressbar, started = settings.progressbar, time.monotonic()
    seed = settings.seed()
    with settings.place(method, rows):
        problem = _problem(model, members, digest, settings, method)
    target, start, starts, units, sums = problem
    tune, draws = settings.lengths(method, sums.ledger.rows)
    layout = settings.layout(method, draws, target.size)
    folder = None
    if settings.checkpoint is not None:
        saved = settings.saved_identity().get("jax", jax.__version__)
        if target.trace is not None and saved != jax.__version__:
            raise SettingError(
                f"the checkpoint in '{settings.checkpoint}' was made with JAX {saved} and this is "
                f"JAX {jax.__version__}; the model's functions are compared by their JAX traces, "
                "which differ between versions: resume with that version, or delete the folder to "
                "start anew."
            )
        numbers = {"draws": draws, "tune": tune * thin, "thin": thin, "seed": seed}
        identity = _identity(problem, rows, method, layout, **numbers)
        folder = Checkpoint(settings.checkpoint, identity)
    with folder or nullcontext(), stoppable(), within_limits():
        task = Task(
            *(target, start, units, sums, _flat_names(target, units)),
            draws=draws * thin,
            tune=tune * thin,
            chains=layout.chains,
            seed=seed,
            checkpoint=folder,
            starts=starts,
            few_chains=FEW if settings.chains == "auto" else None,
        )
        with settings.place(method, rows), phase("mode", None, progressbar):
            task = with_fixed_nodes(task)
            method, plan = method.decide(task)
        if "method" in plan.tuning:
            line = str(plan.tuning["method"])
            if plan.history is not None and settings.tune:
                line += f" They need no warm-up: tune={settings.tune} is not used."
            plan.tuning["method"] = line
            say(line, progressbar)
        if not method.of_few_rows:  # "auto" may have chosen it
            task = task.of_few_chains()
            layout = Layout(task.chains)
        notes = [*_captured(task.target), *plan.notes]
        if digest is not None:
            notes += _about_digest(digest, plan, task.target)
        else:
            notes += doubtful_weights(members)
        doubts = [warn(note) for note in notes]
        with settings.place(method, rows):  # "auto" may have chosen to read all rows
            if plan.history is None:
                ready = _chains(plan, task, layout, settings.parallel, thin)
                history = run(ready, tune, draws, progressbar, folder, plan.hook, partial=True)
                if plan.settled is not None and ready.settled is None:
                    plan.tuning["path"] = {"value": "plain", "why": ready.obstacle}
            else:  # the method drew independent draws; no chains are needed
                task, history = replace(task, tune=0), plan.history.every(thin)
            with phase("checks", None, progressbar):
                finished = Finished(method, plan, history, layout, thin, time.monotonic() - started)
                fit_rows = FitRows.of(members, keep=True) if digest is None else digest.fit_rows
                held = members if digest is None else None
                post = posterior_of(task, fit_rows, held, finished, doubts, origin)
    post.rerun = Rerun(partial(_on_rows, settings))
    return post


def _on_rows(settings: RunSettings, model: BaseModel, rows: Rows, seed: int) -> Posterior:
    """Sample a model with the settings of another run, quietly and without its checkpoint."""
    return draw(
        model, rows, replace(settings, random_seed=seed, progressbar=False, checkpoint=None)
    )


def repeatable(
    post: Posterior, function: Callable[..., Posterior], asked: Mapping[str, object]
) -> Posterior:
    """Let a posterior be made again by the same call with some arguments changed."""
    assert post.rerun is not None
    post.rerun = post.rerun._replace(call=partial(_again, function, dict(asked)))
    return post


def _again(
    function: Callable[..., Posterior], asked: Mapping[str, object], **changes: object
) -> Posterior:
    places = {name: None for name in ("checkpoint", "store") if name in asked}
    return function(**{**asked, **places, **changes})


# The problem and its checks ---------------------------------------------------------------


class _Problem(NamedTuple):
    """What is sampled: the target, its rows or groups and their sums, and the starting points."""

    target: Target
    start: np.ndarray
    starts: Starts
    units: Rows
    sums: Sums


def _problem(
    model: BaseModel, rows: Rows, digest: Digest | None, settings: RunSettings, method: Method
) -> _Problem:
    engine = engine_for(settings.engine, settings.progressbar)
    if digest is not None:
        target, start, units, rest = digest.ready(model)
        ledger = Ledger(rows=len(digest))
        return _Problem(target, start, Starts(), units, Sums(target, units, engine, ledger, rest))
    members = _distinct(model, rows, settings, method)
    units = model.units(members)
    collapsed = (len(members), len(rows)) if len(members) < len(rows) else None
    ledger = Ledger(rows=len(units), unit=units.unit, collapsed=collapsed)
    target, start = Target.of(model, units, ledger)
    model.check_variation(rows)
    where = _starts(target, units, settings.starts)
    return _Problem(target, start, where, units, Sums(target, units, engine, ledger, None))


def _distinct(model: BaseModel, rows: Rows, settings: RunSettings, method: Method) -> Rows:
    """Return distinct rows with weights; all rows if few are equal, or the method needs them."""
    if not settings.collapse or method.fewest_distinct > len(rows):
        return rows
    few = distinct_rows(rows, settings.collapse == "always")
    if few is None or len(few) < method.fewest_distinct:
        return rows
    model.check(rows)  # messages name rows of the table
    if len(few) < len(rows):
        say(f"{len(few):,} of {len(rows):,} rows are distinct", settings.progressbar)
    return few


def _about_digest(digest: Digest, plan: Plan, target: Target) -> list[ModicumWarning]:
    """Return warnings about a digest, and record its error in the plan."""
    point, factor = plan.anchor.point, plan.anchor.factor
    assert isinstance(factor, np.ndarray)  # digests exist only for dense factors
    error = digest.error_at(target, point, factor)
    plan.tuning["digest_error"] = {
        "value": float(f"{error:.2g}"),
        "why": f"how far, in posterior sd, the {len(digest.pool):,} rows of the digest may move "
        "any posterior mean",
    }
    if plan.anchor.record is not None:
        plan.tuning["mode"] = f"found on the {len(digest.pool):,} rows of the digest"
    return digest.doubts(point, factor, error)


def _starts(target: Target, rows: Rows, starts: int | Sequence[Params] | None) -> Starts:
    """Return where to search for modes: the user's points, or a number of dispersed ones."""
    model = target.model
    points = tuple(target.ravel(theta) for theta in model.other_starts(rows))
    searchable = model.has_mode and target.size <= DENSE_LIMIT
    if starts is None:
        starts = DISPERSED if searchable and model.users_functions else 1
    elif isinstance(starts, Sequence) and not isinstance(starts, str):
        free = [model.free_point(theta, rows) for theta in starts]
        points, starts = tuple(target.ravel(theta) for theta in free), 1
    where = Starts(points, whole_number("starts, unless it is a list of points,", starts))
    if where.more_than_first and not searchable:
        raise SettingError(
            f"a search from several starts needs a model of at most {DENSE_LIMIT:,} parameters "
            "that is not a network (networks have too many modes); leave `starts` out."
        )
    return where


@listed
def _captured(target: Target) -> Iterator[ModicumWarning]:
    """Warn if a model's functions capture large arrays, which are compiled as constants."""
    size = 0 if target.trace is None else target.trace.captured_bytes
    if size >= CAPTURED:
        yield ModicumWarning(
            "captured-arrays",
            f"the model's functions have captured {size / 2**20:,.0f} MB of arrays, which are "
            "compiled into every function as constants and may take minutes to compile",
            "put what belongs to a row into a field of mo.Rows, which functions get as `batch`",
            bytes=size,
        )


def _identity(
    problem: _Problem, rows: Rows | Digest, method: Method, layout: Layout, **numbers: int
) -> dict[str, str | int]:
    """Return what identifies a run, so that the checkpoint of a different run is refused."""
    target, start, starts = problem.target, problem.start, problem.starts
    identity: dict[str, str | int] = {
        "rows": rows.fingerprint(),  # compared first: other rows also change scaled priors
        "model": target.identity,
        "method": repr(method),
        **numbers,
        "chains": layout.chains,
        "version": version("modicum"),
    }
    if layout.superchains is not None:
        identity["superchains"] = layout.superchains
    if problem.sums.ledger.collapsed is not None:
        identity["distinct"] = problem.sums.ledger.collapsed[0]
    if target.trace is not None:
        points = b"".join(point.tobytes() for point in (start, *starts.points))
        init = blake2b(points, digest_size=8).hexdigest()
        identity |= {"init": init, "starts": starts.dispersed, "jax": jax.__version__}
    return identity


def _flat_names(target: Target, rows: Rows) -> tuple[str, ...]:
    """Return the names of the flat vector's entries, such as "beta[age]"."""
    names = target.model.flat_names(rows)
    if names is not None:
        return names
    shapes = target.reported_shapes
    empty = {name: np.zeros((1, 1, *s.shape)) for name, s in shapes.items()}
    labels = tidy_labels(target.model.labels(rows), empty)
    return tuple(line for k, s in shapes.items() for line in scalar_names(k, s.shape, labels))


def _chains(
    plan: Plan, task: Task, layout: Layout, parallel: Parallel | None, thin: int
) -> Chains | ChainTasks:
    keys = chain_keys(task.seed, task.chains)
    hosts = task.sums.engine.hosts(ChainHost, task.chains)
    at_hosts: Parallel | None = "stacked" if hosts is not None and hosts.accelerators else None
    how = parallel or at_hosts or default_parallel(task.chains)
    together = task.chains if how == "stacked" else 1
    recorded, total = ceil(task.target.size / thin), task.tune + task.draws
    with_rows = capacity_for(recorded + plan.floats_per_iteration, total, together)
    # Rows fetched from the host stay in memory for a whole chunk, others for one compiled call.
    rows, capacity = plan.rows, with_rows
    if isinstance(rows, Rows):
        rows = task.sums.engine.feed(rows)
    else:
        capacity = capacity_for(recorded, total, together)
    assert plan.kernel is not None
    parts = (plan.kernel, plan.context, keys, plan.flags, capacity, rows, how, thin)
    # iterations prepared at once, however few of them a call takes: calls of many chains are short
    many_on_cpu = together > 1 and not on_accelerator()
    most = LENGTH // 4 if many_on_cpu else LENGTH
    ready = Chains(
        *parts,
        length=min(with_rows, most, plan.hook.every if plan.hook is not None else most),
        units=f"{task.ledger.unit}s",
        start_keys=layout.start_keys(keys),
        settled=plan.settled,
        settled_length=_settled_length(plan, task),
        group=task.chains // len(hosts) if hosts is not None and how == at_hosts else None,
    )
    return ready if hosts is None else ChainTasks(ready, hosts)


def _settled_length(plan: Plan, task: Task) -> int:
    """Return how many iterations one call may fuse, given the index range and free memory."""
    if plan.settled is None:
        return 0
    fixed, per_iteration = plan.settled.numbers(task.target.size)
    most = min(2**31 - 1, free_memory() // 64) // task.chains  # temporaries need memory too
    return int(min(FUSED, task.draws, (most - fixed) // per_iteration))
