"""Tables of the cases of a parametrised test, one per line."""

import pytest


def cases(names, *rows, ids=None):
    """Run a test once per row of values, for the arguments of these names."""
    return pytest.mark.parametrize(names.replace(" ", ","), rows, ids=ids)
