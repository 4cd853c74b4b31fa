"""Patches that compiled code would not show.

A compiled function is not traced again for arguments like those it has seen, so that it hides a
patch of what it looked up while it was traced, and keeps the patch after its test. Where a test
patches what compiled functions may look up, compiled code is therefore let go before and after.
Patches of anything else leave it alone: most of a test run is compilation.
"""

import sys
from functools import wraps
from inspect import isclass, ismodule
from pkgutil import resolve_name

import pytest

TRACED = (  # where compiled functions look things up
    *("jax", "numpyro", "modicum.arrays", "modicum.designs", "modicum.digest"),
    *("modicum.estimators", "modicum.kernels", "modicum.log_posterior", "modicum.methods"),
    *("modicum.models", "modicum.passes", "modicum.random", "modicum.results"),
    *("modicum.run.advance", "modicum.run.records"),
)
# Names there that plain Python alone looks up: how much is done at once or how often, what is
# refused or warned about, what plans are made of. A name that is not here costs time. One that
# should not be here hides a patch: before you add it, read where it is used.
PLAIN = (
    "modicum.methods.base.Task.anchor_at_mode",
    "modicum.methods.base.anchor_at_mode",
    "modicum.methods.choice.Auto.decide",
    "modicum.methods.choice._enough",
    "modicum.methods.cost",
    "modicum.methods.ecs.fusing._can_lower",
    "modicum.methods.ecs.perturbed.DelayedAcceptanceKernel",  # kernels are arguments, by value
    "modicum.methods.ecs.composition.EnergyConservingKernel",
    "modicum.methods.ecs.anchored_proxy.MANY",
    "modicum.methods.ecs.anchored_proxy.row_factor",
    "modicum.methods.ecs.paper_schedule.STAGES",
    "modicum.methods.ecs.pilot.Study._curves",
    "modicum.methods.ecs.pilot.may_be_curved",
    "modicum.methods.ecs.pilot.run_pilot_chains",
    "modicum.methods.ecs.tuning.pilot_chains._chains",  # a whole loop: nothing compiled calls it
    "modicum.methods.ecs.tuning.residuals.BLOCK",
    "modicum.methods.full_data.HMC.move",
    "modicum.methods.full_data.curves_on_all_rows",
    "modicum.methods.groups.COARSE",
    "modicum.methods.groups.NEAR_ZERO",
    "modicum.methods.mean_anchor",
    "modicum.models.groups.integrated.FEWEST_NODES",
    "modicum.models.prediction.BUDGET",
    "modicum.passes.anchor.DENSE_LIMIT",
    "modicum.passes.engine.LocalEngine.hosts",
    "modicum.passes.engine.chunk_rows",
    "modicum.passes.engine.padded_chunk",
    "modicum.passes.full_likelihood.chunk_rows",
    "modicum.passes.mode.MAX_STEPS",
    "modicum.passes.scales.FEW",
    "modicum.run.advance.advance",
    "modicum.run.advance.advance_together",
    "modicum.run.records.RESERVED",
)


def watch():
    """Look at every patch from now on, by the fixture or by `MonkeyPatch.context`."""
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


def forget_compiled_code():
    """Have every function traced again."""
    import jax

    jax.clear_caches()


def is_traced(place):
    """Whether compiled functions may have looked up what has this dotted name."""
    return _is_within(place, TRACED) and not _is_within(place, PLAIN)


def _is_within(place, names):
    return any(f"{place}.".startswith(f"{name}.") for name in names)


def place_of(target, name=None):
    """Dotted name of what `setattr(target, name, ...)` or `setitem(target, name, ...)` replaces.

    Of an object's attribute it is that of its class. A dictionary is known by its place in a
    module; an entry that is new replaces nothing.
    """
    if isinstance(target, str):
        before, _, name = target.rpartition(".")
        target = resolve_name(before)  # which may be another module's
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
