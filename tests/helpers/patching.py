"""Clear compiled code when tests patch what it looked up.

A compiled function is not traced again for similar arguments, so it would ignore a patch of
something it looked up while being traced, or keep the patch after the test. If a test patches a
name that compiled functions may look up, compiled code is therefore cleared before and after.
Other patches leave it alone, because most of a test run is compilation.
"""

import sys
from functools import wraps
from inspect import isclass, ismodule
from pkgutil import resolve_name
from types import SimpleNamespace

import pytest

TRACED = (  # modules where compiled functions look up names
    *("jax", "numpyro", "modicum.arrays", "modicum.kernels.designs", "modicum.digest"),
    *("modicum.kernels", "modicum.log_posterior", "modicum.methods"),
    *("modicum.models", "modicum.passes", "modicum.random", "modicum.results"),
    "modicum.run.iterations",
    "modicum.runtime.devices",
)
# Names in those modules that only plain Python looks up: sizes and frequencies of work, limits for
# errors and warnings, parts of plans. A name missing here costs time. A name wrongly listed here
# hides a patch: before you add one, read where it is used.
PLAIN = (
    "modicum.methods.method.Task.anchor_at_mode",
    "modicum.methods.method.anchor_at_mode",
    "modicum.methods.auto.Auto.decide",
    "modicum.methods.auto._weights",
    "modicum.methods.cost",
    "modicum.methods.ecs.composition._can_lower",
    "modicum.methods.ecs.hmc_ecs.DelayedAcceptanceKernel",  # kernels are passed by value
    "modicum.methods.ecs.paper_schedule.STAGES",
    "modicum.methods.pilot.study.PILOT_ROWS",
    "modicum.methods.pilot.short_chains.may_be_curved",
    "modicum.methods.pilot.short_chains._chains",  # a whole loop: compiled code never calls it
    "modicum.methods.pilot.pilot_residuals.BLOCK",
    "modicum.methods.full_data.HMC.move",
    "modicum.methods.full_data.curves_on_all_rows",
    "modicum.models.integrated.FEWEST_NODES",
    "modicum.models.over_draws.BUDGET",
    "modicum.passes.anchor.DENSE_LIMIT",
    "modicum.passes.engine.LocalEngine.hosts",
    "modicum.passes.engine.chunk_rows",
    "modicum.rows.Rows.chunk",
    "modicum.passes.sums.chunk_rows",
    "modicum.passes.mode",  # the search: it calls compiled sums, and none of them calls it
    "modicum.passes.ray_engine",
    "modicum.passes.ray_engine",
    "modicum.run.iterations.advance",
    "modicum.run.iterations.ahead",
    "modicum.run.iterations.Fetcher",
    "modicum.run.iterations.RESERVED",
    "modicum.run.iterations.SMALL_STORE",
)


def watch():
    """Watch all patches from now on, by the fixture or by `MonkeyPatch.context`."""
    patches = pytest.MonkeyPatch
    for change in ("setattr", "delattr", "setitem", "delitem"):
        setattr(patches, change, _watched(getattr(patches, change)))
    patches.undo = _undoing(patches.undo)


def _watched(change):
    @wraps(change)
    def watched(patch, target, *rest, **settings):
        if is_traced(place_of(target, *rest[:1])):
            forget_compiled_code()
            patch.is_traced = True
        return change(patch, target, *rest, **settings)

    return watched


def _undoing(undo):
    @wraps(undo)
    def undoing(patch):
        undo(patch)
        if vars(patch).pop("is_traced", False):
            forget_compiled_code()

    return undoing


def pretend_device(patch, kind):
    """Have Modicum believe that chains run on this kind of device, while a CPU computes."""
    device = SimpleNamespace(platform=kind, memory_stats=lambda: None)
    patch.setattr("modicum.runtime.devices", lambda: [device])


def forget_compiled_code():
    """Clear compiled code, so that every function is traced again."""
    import jax

    jax.clear_caches()


def is_traced(place):
    """Whether compiled functions may have looked up this dotted name."""
    return _is_within(place, TRACED) and not _is_within(place, PLAIN)


def _is_within(place, names):
    return any(f"{place}.".startswith(f"{name}.") for name in names)


def place_of(target, name=None):
    """Return the dotted name that `setattr` or `setitem` with these arguments replaces.

    For an attribute of an object, use its class. A dictionary is identified by its name in a
    module; a new entry replaces nothing.
    """
    if isinstance(target, str):
        before, _, name = target.rpartition(".")
        target = resolve_name(before)  # it may be defined in another module
    if isinstance(target, dict):
        return _place_of_dictionary(target) if name in target else ""
    if ismodule(target):
        return f"{target.__name__}.{name}"
    owner = target if isclass(target) else type(target)
    return f"{owner.__module__}.{owner.__qualname__}.{name}"


def _place_of_dictionary(entries):
    for place, module in list(sys.modules.items()):
        if _is_within(place, TRACED):
            for name, value in vars(module).items():
                if value is entries:
                    return f"{place}.{name}"
    return ""
