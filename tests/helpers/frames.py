"""A small data frame with a column of each kind, for tests of sources and stores."""

import numpy as np
import pandas as pd


def frame_of(n=3000, seed=1):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "a": rng.normal(size=n).astype(np.float32),
            "k": rng.integers(0, 9, n),
            "g": rng.choice(["u", "v", "w"], n),
            "year": np.sort(rng.integers(2020, 2023, n)),
            "y": rng.integers(0, 2, n),
        }
    )
