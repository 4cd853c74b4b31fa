"""The named methods: what `method=` accepts, and which of them is the default."""

from __future__ import annotations

from modicum.errors import CrudeControlVariateError, NoModeError, SettingError, suggestion
from modicum.methods.base import Method, Plan, Task
from modicum.methods.ecs import HMCECS, SignedHMCECS
from modicum.methods.ecs.checks import COSTLY, UNFIT
from modicum.methods.flymc import FlyMC
from modicum.methods.full_data import HMC, NUTS
from modicum.methods.sgmcmc import NAMED, StochasticGradient

__all__ = [
    "DEFAULT",
    "HMC",
    "HMCECS",
    "METHODS",
    "NUTS",
    "FlyMC",
    "Method",
    "SignedHMCECS",
    "StochasticGradient",
    "default_plan",
    "list_methods",
    "resolve",
]

# One line per method; those of stochastic gradients have theirs in `sgmcmc/named.py`.
_CLASSES: tuple[type[Method], ...] = (
    HMCECS,
    SignedHMCECS,
    HMC,
    NUTS,
    FlyMC,
    *NAMED,
    StochasticGradient,
)
METHODS: dict[str, type[Method]] = {cls.name: cls for cls in _CLASSES}
DEFAULT = HMCECS.name


def list_methods() -> str:
    """Every method by name with a few words about it, one per line, for help texts.

    Examples
    --------
    >>> print(list_methods().splitlines()[0])
    hmc-ecs              a few hundred rows per step, chosen by themselves; the default
    """
    width = max(len(name) for name in METHODS) + 2
    return "\n".join(f"{name:<{width}}{cls.summary}" for name, cls in METHODS.items())


def resolve(method: str | Method | type[Method]) -> Method:
    """Return the method object for a name, or the object itself."""
    if isinstance(method, Method):
        return method
    if isinstance(method, type) and issubclass(method, Method):
        return method()
    if isinstance(method, str) and method.lower() in METHODS:
        return METHODS[method.lower()]()
    raise SettingError(
        f"there is no method {method!r}{suggestion(str(method), METHODS)}; "
        f"the methods are {', '.join(sorted(METHODS))}."
    )


def default_plan(task: Task) -> tuple[Method, Plan]:
    """HMC-ECS, or NUTS on all rows where it would not do: by its pilot, or for several modes."""
    method = resolve(DEFAULT)
    try:
        modes = task.anchor_at_mode().modes if task.starts and task.starts.several else None
        if modes is not None and len(modes) > 1:
            reasons = [f"the posterior has {len(modes)} modes and HMC-ECS expands about one"]
        else:
            plan = method.plan(task)
            reasons = [note.sentence for note in plan.notes if note.code in UNFIT | COSTLY]
            if not reasons:
                return method, plan
    except CrudeControlVariateError as crude:
        reasons = [crude.sentence]
    except NoModeError:
        reasons = ["the posterior has no mode that could be found, and HMC-ECS expands about one"]
    method = resolve("nuts")
    plan = method.plan(task)
    plan.tuning["method"] = f"NUTS on all rows, since {reasons[0]}."
    return method, plan
