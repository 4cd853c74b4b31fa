"""Libraries that only some runs need: imported when one of their names is first used.

`from modicum.libraries import pyarrow as pa` costs nothing; `pa.table` imports pyarrow.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import arviz_base as arviz_base
    import arviz_stats as arviz_stats
    import formulaic as formulaic
    import pandas as pandas
    import pyarrow as pyarrow
    import xarray as xarray
else:

    class _Library(ModuleType):
        """Stands for a library, and for its modules, which are imported on use too."""

        def __getattr__(self, name: str) -> Any:
            library = import_module(self.__name__)
            if hasattr(library, name) or name.startswith("_"):
                return getattr(library, name)
            return import_module(f"{self.__name__}.{name}")

    arviz_base, arviz_stats = map(_Library, ("arviz_base", "arviz_stats"))
    formulaic, pandas, pyarrow, xarray = map(_Library, ("formulaic", "pandas", "pyarrow", "xarray"))
