"""Why the functions of a user-defined model cannot be used, in a sentence."""

from __future__ import annotations

import inspect

import jax

from modicum.errors import SettingError, fault_text
from modicum.models.base import Params
from modicum.rows import Rows


def require_both(log_prior: object, log_likelihood: object) -> None:
    """Refuse functions that are missing, swapped, or take the wrong number of arguments."""
    for name, function, takes, given in (
        ("log_prior", log_prior, 1, "the parameters"),
        ("log_likelihood", log_likelihood, 2, "the parameters and a batch of rows"),
    ):
        if function is None:
            raise SettingError(
                f"{name} must be a function of {given}, not None"
                + ("; lambda theta: 0.0 is a flat prior." if name == "log_prior" else ".")
            )
        if not _accepts(function, takes):
            swapped = _accepts(log_prior, 2) and _accepts(log_likelihood, 1)
            raise SettingError(
                f"{name} must be a function of {given}, but this one does not take "
                + ("one argument" if takes == 1 else "two arguments")
                + ("; log_prior comes first, log_likelihood after it." if swapped else ".")
            )


def _accepts(function: object, count: int) -> bool:
    """Whether a function can be called with `count` arguments, as far as its signature shows."""
    assert callable(function)
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # no signature, as for some built-in functions
        return True
    return True


def missing_name(name: KeyError, rows: Rows) -> str:
    """Say which name the functions look up in vain."""
    return (
        f"the model asks for {name}, which neither its parameters nor the rows hold (the rows "
        f"hold {', '.join(sorted(rows.fields))})."
    )


def why_failed(fault: Exception, init: Params) -> str:
    """Say why the functions failed on the first rows."""
    if isinstance(fault, jax.errors.JAXTypeError):  # Python control flow on traced values
        remedy = (
            "they are traced by JAX, so `if`, `while`, float() and NumPy cannot be used on "
            "parameters or rows: use jnp.where and jax.numpy"
        )
    else:
        remedy = "check the shapes they expect"
    if isinstance(init, list):
        remedy += ", and if `init` is meant as several points, pass them as mo.sample(starts=[...])"
    return f"the model's functions fail on the first rows ({fault_text(fault)}); {remedy}."
