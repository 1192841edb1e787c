"""Small made-up tables, with columns of every kind and labels of every kind."""

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


def shop(rows: int, seed: int = 1) -> pd.DataFrame:
    """A price, a count and a color that depend on a number, a category and a vector."""
    random = np.random.default_rng(seed)
    size, brand, vector = random.normal(size=rows), random.integers(0, 5, rows), random.normal(size=(rows, 3))
    score = np.stack([2 * size, vector[:, 0] * 2, brand - 2.0], 1)
    return pd.DataFrame(
        {
            "size": size,
            "brand": [f"b{b}" for b in brand],
            "vector": list(vector),
            "price": 200_000 + 5000 * (size * (brand - 2) + vector[:, 1]) + 1000 * random.normal(size=rows),
            "visits": random.poisson(np.exp(0.8 * size + 0.3 * vector[:, 2])),
            "color": np.array(["red", "green", "blue"])[(score + random.gumbel(size=(rows, 3))).argmax(1)],
        }
    )


def impressions(rows: int, seed: int = 1) -> pd.DataFrame:
    """Impressions of a shop; `purchased`, `revenue`, `coupon` and `basket` are known only after a click."""
    random = np.random.default_rng(seed)
    position, price = random.integers(1, 9, rows), random.lognormal(3, 1, rows).round(2)
    clicked = (random.random(rows) < 0.45 / position**0.5).astype(int)
    purchased = clicked * (random.random(rows) < 0.3)
    coupon = np.where(purchased * (random.random(rows) < 0.5) > 0, random.choice(["spring", "vip"], rows), "")
    return pd.DataFrame(
        {
            "user_id": random.integers(0, 40, rows),
            "position": position,
            "price": price,
            "device_type": random.integers(0, 4, rows),
            "purchased": purchased,
            "revenue": price * purchased,
            "coupon": coupon,
            "status": np.where(purchased > 0, "paid", random.choice(["seen", "open"], rows)),
            "clicked": clicked,
        }
    )


def choices(rows: int, seed: int = 1) -> pd.DataFrame:
    """Which products users bought, mostly of their own kind, in order of time; what may describe a row."""
    random = np.random.default_rng(seed)
    user, number = random.integers(0, 60, rows), np.arange(rows)
    own = random.random(rows) < 0.9
    item = np.where(own, user % 6, random.integers(0, 6, rows)) + 6 * random.integers(0, 20, rows)
    seen: list[list[str]] = [[] for _ in range(60)]
    histories = []
    for u, i in zip(user, item, strict=True):
        histories.append("|".join(seen[u][-30:]))
        seen[u].append(str(i))
    return pd.DataFrame(
        {
            "user_id": user,
            "country": np.array(["de", "fr", "it"])[user % 3],
            "session": user * 1000 + number // 40 % 1000,
            "product_id": item,
            "kind": [f"k{i % 6}" for i in item],
            "price": 5.0 + item * 7 % 50 / 4,
            "title": [f"product {i}" for i in item],
            "variant": [f"v{i}.{j}" for i, j in zip(item, random.integers(0, 9, rows), strict=True)],
            "device": random.choice(["phone", "tablet", "desktop"], rows),
            "gift": random.integers(0, 2, rows),
            "seconds": random.integers(1, 500, rows),
            "rating": random.integers(1, 6, rows),
            "seen": histories,
            "at": 1_600_000_000 + 60 * number,
        }
    )
