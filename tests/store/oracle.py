"""A store as a dict of NumPy rows: slow, short, plainly right. The tests compare the real one with it."""

import numpy as np

from satrap.optim import Adagrad, Adam, Optimizer, RowWiseAdagrad


class DictShard:
    """Rows [weights, state] by (table, id); `initial(table, ids)` gives the weights of new rows."""

    def __init__(self, dim, optimizers, initial):
        self.dim, self.optimizers, self.initial = dim, optimizers, initial
        self.rows = {name: {} for name in optimizers}
        self.dropped = dict.fromkeys(optimizers, 0)

    def lookup(self, table, ids):
        rows = self.rows[table]
        for key in ids.tolist():
            if key not in rows:
                weights = self.initial(table, np.array([key], np.uint64))[0]
                rows[key] = [weights.copy(), start(self.optimizers[table], len(weights))]
        return np.array([rows[key][0] for key in ids.tolist()], np.float32).reshape(len(ids), self.dim)

    def update(self, table, ids, gradients, lr_scale=1.0):
        sums = {}
        for key, gradient in zip(ids.tolist(), gradients, strict=True):
            sums[key] = sums[key] + gradient if key in sums else gradient.copy()
        for key, gradient in sums.items():
            if key in self.rows[table]:
                step(self.optimizers[table], *self.rows[table][key], gradient, lr_scale)
            else:
                self.dropped[table] += 1


def start(optimizer: Optimizer, dim: int) -> np.ndarray:
    """Return the state of a new row, as an exported chunk holds it."""
    width = {Adagrad: dim, RowWiseAdagrad: 1, Adam: 2 * dim + 1}.get(type(optimizer), 0)
    return np.full(width, getattr(optimizer, "initial_accumulator", 0.0), np.float32)


def step(o: Optimizer, w: np.ndarray, s: np.ndarray, g: np.ndarray, lr_scale: float) -> None:
    """Take one step in place, in float64 inside, rounded to float32 at the end."""
    g64, lr, d = g.astype(np.float64), o.lr * lr_scale, len(w)
    if isinstance(o, Adagrad):
        s[:] = s + g64 * g64
        w[:] = w - lr * g64 / (np.sqrt(s.astype(np.float64)) + o.eps)
    elif isinstance(o, RowWiseAdagrad):
        s[:] = s + np.mean(g64 * g64)
        w[:] = w - lr * g64 / (np.sqrt(np.float64(s[0])) + o.eps)
    elif isinstance(o, Adam):
        b1, b2 = o.betas
        s[-1] += 1
        t = float(s[-1])
        s[:d] = b1 * s[:d].astype(np.float64) + (1 - b1) * g64
        s[d:-1] = b2 * s[d:-1].astype(np.float64) + (1 - b2) * g64 * g64
        mean, square = s[:d] / (1 - b1**t), s[d:-1].astype(np.float64) / (1 - b2**t)
        w[:] = w - lr * mean / (np.sqrt(square) + o.eps)
    else:
        w[:] = w - lr * g64
