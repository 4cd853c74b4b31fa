"""Public data sets to try Modicum on; the loaders belong to the laboratory.

It is imported when `mo.datasets` is first used, so that `import modicum` costs nothing more.
"""

from modicum_lab.datasets import *  # noqa: F403
from modicum_lab.datasets import __all__ as __all__
