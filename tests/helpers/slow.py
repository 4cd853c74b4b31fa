"""Cases of a parametrised test that the quick suite leaves out."""

import pytest


def slowly(*cases):
    """Mark cases as slow; a tuple holds a value for each argument."""
    values = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [pytest.param(*each, marks=pytest.mark.slow) for each in values]
