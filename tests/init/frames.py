"""A small table with columns of every kind."""

from __future__ import annotations

import numpy as np
import pandas as pd


def clicks(rows: int, seed: int = 1) -> pd.DataFrame:
    """The label `y` depends on user, price (in steps) and genres; other columns are of no use."""
    random = np.random.default_rng(seed)
    user = random.integers(0, 40, rows)
    price = random.lognormal(size=rows)
    genres = random.integers(0, 8, (rows, 2))
    logit = (
        np.random.default_rng(0).normal(size=40)[user]
        + 3 * ((price * 2).astype(int) % 2)
        + genres[:, 0] / 3
        - 3
    )
    y = (random.random(rows) < 1 / (1 + np.exp(-logit))).astype(int)
    return pd.DataFrame(
        {
            "row": np.arange(rows),
            "user_id": user.astype(float),
            "price": price,
            "genres": [f"g{a}|g{b}" for a, b in genres],
            "same": 7,
            "copy": np.where(y == 1, "bought", "left"),
            "at": [f"2024-01-{1 + i % 28:02} 10:00:00" for i in range(rows)],
            "y": y,
        }
    )
