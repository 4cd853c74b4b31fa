"""Refusals in one line, and runs whose warnings are beside the point."""

import warnings
from contextlib import contextmanager

import pytest

from modicum.errors import ModicumError, ModicumWarning


def refused(error, words, call, *arguments, **settings):
    """Check that a call raises `error` in a sentence with these `words`; return the sentence."""
    with pytest.raises(error, match=words) as caught:
        call(*arguments, **settings)
    said = str(caught.value)
    assert said.endswith((".", "?")) or not isinstance(caught.value, ModicumError)
    return said


@contextmanager
def unwarned():
    """Ignore the warnings of runs that are short, or wrong on purpose."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ModicumWarning)
        yield
