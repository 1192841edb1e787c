"""A store as dicts of NumPy rows in float32, from the definitions; the real one must equal it to the bit.

Sums over a row are taken as the kernels do (16 running sums, then halves pairwise, then the tail), because
the order is part of a float32 sum's value.
"""

import math
from dataclasses import dataclass, field

import numpy as np

from satrap.optim import FTRL, SGD, Adagrad, Adam, AdamW, RowWiseAdagrad
from satrap.store import hashes

F, MASK = np.float32, 2**64 - 1
GOLDEN, FACTOR = 0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93
LARGEST = {"float32": np.finfo(F).max, "bfloat16": F(3.3895314e38), "float16": F(65504)}


def mix(x):
    x = ((x ^ (x >> 32)) * FACTOR) & MASK
    x = ((x ^ (x >> 32)) * FACTOR) & MASK
    return x ^ (x >> 32)


def random_bits(key, columns):
    x = np.uint32(key & 0xFFFFFFFF) + np.uint32(key >> 32 | 1) * columns.astype(np.uint32)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = (x ^ (x >> np.uint32(shift))) * np.uint32(factor)
    return x ^ (x >> np.uint32(16))


def rounded(x, dtype, key):
    """Round float32[dim] to a format with the random bits of `key`; the result as float32."""
    if dtype == "float32":
        return x
    bits, noise = x.view(np.uint32), random_bits(key, np.arange(len(x)))
    if dtype == "bfloat16":
        return ((bits + (noise & np.uint32(0xFFFF))) & np.uint32(0xFFFF0000)).view(F)
    x64 = np.abs(x).astype(np.float64)
    unit = np.exp2(np.maximum(np.floor(np.log2(np.maximum(x64, 1e-300))), -14) - 10)
    whole, part = np.divmod(x64 / unit, 1)
    up = (noise >> np.uint32(8)) * 2.0**-24 < part
    return np.copysign((whole + up) * unit, x).astype(F)


def squares(g):
    full = len(g) // 16 * 16
    sums = np.zeros(16, F)
    for k in range(0, full, 16):
        sums = sums + g[k : k + 16] * g[k : k + 16]
    while len(sums) > 1:
        sums = sums[: len(sums) // 2] + sums[len(sums) // 2 :]
    result = sums[0]
    for x in g[full:]:
        result = F(result + x * x)
    return result


def clipped(g, clip):
    total = np.float64(squares(g))
    if not 1e-30 < total < 1e38:
        total = np.float64(sum(float(x) ** 2 for x in g))
    limit = np.float64(F(clip))
    return g if total <= limit * limit else g * F(limit / np.sqrt(total))


def start(o, dim):
    """Return the state of a new row, as a chunk holds it."""
    match o:
        case SGD():
            return np.zeros(dim if o.momentum else 0, F)
        case Adagrad():
            return np.full(dim, o.initial_accumulator, F)
        case RowWiseAdagrad():
            return np.full(1, o.initial_accumulator, F)
        case FTRL():
            return np.zeros(2 * dim, F)
    return np.zeros(2 * dim + 1, F)


def advance(o, w, s, g, lr64):
    """Return the new weights; `s` is changed in place. The gradient is clipped and decayed already."""
    lr, d = F(lr64), len(w)
    match o:
        case SGD() if o.momentum:
            s[:] = F(o.momentum) * s + g
            own, kept = (F(1), F(o.momentum)) if o.nesterov else (F(0), F(1))
            return w - lr * (own * g + kept * s)
        case SGD():
            return w - lr * g
        case Adagrad():
            s[:] = s + g * g
            return w - lr * (g / (np.sqrt(s) + F(o.eps)))
        case RowWiseAdagrad():
            s[0] = s[0] + squares(g) / F(d)
            return w - F(lr / (np.sqrt(s[0]) + F(o.eps))) * g
        case Adam() | AdamW():
            b1, b2 = o.betas
            s[-1] += 1
            t = float(s[-1])
            rate, correction = F(lr64 / (1 - b1**t)), F(math.sqrt(1 - b2**t))
            s[:d] = F(b1) * s[:d] + F(1 - b1) * g
            s[d:-1] = F(b2) * s[d:-1] + F(1 - b2) * g * g
            shrink = F(1 - lr64 * o.weight_decay) if isinstance(o, AdamW) else F(1)
            return shrink * w - rate * (s[:d] / (np.sqrt(s[d:-1]) / correction + F(o.eps)))
        case FTRL():
            return ftrl(o, w, s, g, lr)
    raise AssertionError(o)


def ftrl(o, w, s, g, alpha):
    d, beta, l1, l2 = len(w), F(o.beta), F(o.l1), F(o.l2)
    z, n = s[:d], s[d:]
    fresh = -w * (beta / alpha + l2) - np.sign(w) * l1
    z = np.where(n == 0, fresh, z)
    after = np.minimum(n + g * g, LARGEST["float32"])
    z = z + g - (np.sqrt(after) - np.sqrt(n)) / alpha * w
    s[:d], s[d:] = z, after
    moved = np.where(np.abs(z) <= l1, F(0), (np.sign(z) * l1 - z) / ((beta + np.sqrt(after)) / alpha + l2))
    return np.where(after == 0, w, moved).astype(F)


@dataclass
class ModelTable:
    rows: dict = field(default_factory=dict)
    uses: dict = field(default_factory=dict)
    counts: dict = field(default_factory=lambda: dict.fromkeys(COUNTED, 0))


COUNTED = ("created", "hits", "misses", "unadmitted", "dropped", "evicted", "refused")


class Model:
    """One group of tables: lookup, update, peek, as `Shard` defines them.

    Which rows go is the store's choice: it is told with `evict`, and `lookup` asks which new ids found room.
    """

    def __init__(self, tables, optimizer, *, seed, admission):
        self.optimizer, self.seed, self.admission = optimizer, seed, admission
        self.specs = {t.name: t for t in tables}
        self.dtype, self.dim = tables[0].dtype, tables[0].dim
        self.tables = {t.name: ModelTable() for t in tables}
        self.updates = self.requests = 0

    def forget_uses(self):
        for table in self.tables.values():
            table.uses.clear()

    def initial(self, name, key):
        h = mix(key ^ int(hashes.row_seed(self.seed, name)))
        bits = random_bits(h, np.arange(1, self.dim + 1)) >> np.uint32(9)
        unit = F(F(self.specs[name].initial_scale) * F(2.0**-23))
        values = (bits.astype(np.int64) * 2 - 8388607).astype(F) * unit
        return rounded(values, self.dtype, mix(h))

    def admits(self, name, key):
        table, a = self.tables[name], self.admission
        table.uses[key] = min(table.uses.get(key, 0) + 1, a.min_count)
        coin = (int(hashes.row_seed(self.seed, "\0admission")) + self.requests * GOLDEN) & MASK
        toss = mix(mix(key ^ int(hashes.index_salt(name))) ^ coin) >> 11
        return table.uses[key] >= a.min_count and toss * 2.0**-53 < a.probability

    def evict(self, name, key):
        del self.tables[name].rows[key]  # with its state
        self.tables[name].counts["evicted"] += 1

    def lookup(self, name, keys, has=lambda key: True):
        table = self.tables[name]
        unique = list(dict.fromkeys(keys)) if not self.admission.open else keys
        new = [k for k in unique if k not in table.rows]
        table.counts["hits"] += len(unique) - len(new)
        table.counts["misses"] += len(new)
        self.requests += 1
        for key in dict.fromkeys(new):
            if self.admits(name, key):
                if not has(key):
                    table.counts["refused"] += new.count(key)
                    continue
                table.rows[key] = [self.initial(name, key), start(self.optimizer, self.dim)]
                table.counts["created"] += 1
            else:
                table.counts["unadmitted"] += 1
        return self.peek(name, keys)[0]

    def peek(self, name, keys):
        rows = self.tables[name].rows
        read = [rows[k][0] if k in rows else self.initial(name, k) for k in keys]
        return np.array(read, F).reshape(len(keys), self.dim), np.array([k in rows for k in keys], bool)

    def update(self, name, keys, gradients, lr_scale):
        sums = {}
        for key, g in zip(keys, gradients, strict=True):
            sums[key] = sums.get(key, np.zeros(self.dim, F)) + g
        self.updates += 1
        for key, g in sums.items():
            if key in self.tables[name].rows:
                self.step(self.tables[name].rows[key], key, g, lr_scale)
            else:
                self.tables[name].counts["dropped"] += 1

    @np.errstate(over="ignore", invalid="ignore")
    def step(self, row, key, g, lr_scale):
        o, w = self.optimizer, row[0]
        if o.clip is not None:
            g = clipped(g, o.clip)
        if not isinstance(o, AdamW):
            g = g + F(getattr(o, "weight_decay", 0.0)) * w
        noise = (int(hashes.row_seed(self.seed, "")) + self.updates * GOLDEN) & MASK
        bound = F(min(LARGEST[self.dtype], o.bound or math.inf))
        moved = np.clip(advance(o, w, row[1], g, o.lr * lr_scale), -bound, bound)
        row[0] = rounded(moved.astype(F), self.dtype, mix(key ^ noise))
