"""The models as formulas: operations of PyTorch on weights by name, without a part of satrap.

Each function of `FORMULAS` returns the logits float[n] of one binary label. It takes the model's parameters
by name, the vectors of each feature float[n, dim], the features' first-order weights float[n, features] (any
values for models without them), and the numbers float[n, K].
"""

from __future__ import annotations

import itertools

import torch
from torch import relu, sigmoid, softmax
from torch.nn.functional import gelu


def randomise(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape))


def explicit_pairs(vectors):
    return torch.stack(
        [(vectors[:, i] * vectors[:, j]).sum(1) for i in range(vectors.shape[1]) for j in range(i)], dim=1
    )


def linear(w, name, x):
    y = x @ w[f"{name}.weight"].T
    return y + w[f"{name}.bias"] if f"{name}.bias" in w else y


def tower(w, name, x):
    """Apply the linear layers of a stack, each with a ReLU."""
    places = sorted(int(k.split(".")[-2]) for k in w if k.startswith(f"{name}.") and k.endswith(".weight"))
    for place in places:
        x = relu(linear(w, f"{name}.{place}", x))
    return x


def norm(w, name, x):
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).square().mean(-1, keepdim=True)
    return (x - mean) / (variance + 1e-5).sqrt() * w[f"{name}.weight"] + w[f"{name}.bias"]


def count(w, name):
    """Return the number of parameters whose names differ in a number from 0."""
    return next(k for k in itertools.count() if name.format(k) not in w)


def of_one_width(w, vectors):
    matrices = iter([w[f"vectors.maps.{k}.weight"] for k in range(count(w, "vectors.maps.{}.weight"))])
    width = max(v.shape[1] for v in vectors)
    return [v if v.shape[1] == width else v @ next(matrices).T for v in vectors]


def with_numbers(w, name, vectors, numeric):
    """Append a learned vector times each number to a list of vectors."""
    return vectors + [x[:, None] * w[name][k] for k, x in enumerate(numeric.T)]


def flat(vectors, numeric):
    return torch.cat([*vectors, numeric], dim=1)


def lr(w, vectors, first, numeric):
    return first.sum(1) + numeric @ w["first.weight"][:, 0] + w["first.bias"]


def fm(w, vectors, first, numeric):
    fields = with_numbers(w, "second.vectors", of_one_width(w, vectors), numeric)
    return lr(w, vectors, first, numeric) + sum((a * b).sum(1) for a, b in itertools.combinations(fields, 2))


def dnn(w, vectors, first, numeric):
    return linear(w, "head", tower(w, "deep", flat(vectors, numeric)))[:, 0]


def wide_deep(w, vectors, first, numeric):
    wide = first.sum(1) + numeric @ w["wide.weight"][:, 0] + w["wide.bias"]
    return wide + dnn(w, vectors, first, numeric)


def deepfm(w, vectors, first, numeric):
    return fm(w, vectors, first, numeric) + dnn(w, of_one_width(w, vectors), first, numeric)


def dcnv2(w, vectors, first, numeric):
    x0 = x = flat(vectors, numeric)
    for k in range(count(w, "cross.{}.project.0.weight")):
        step = x0 * linear(w, f"cross.{k}.project.0", x)
        if f"cross.{k}.gate.0.weight" in w:
            step = step * sigmoid(x @ w[f"cross.{k}.gate.0.weight"].T)
        x = step + x
    return linear(w, "head", torch.cat([x, tower(w, "deep", x0)], dim=1))[:, 0]


def dlrm(w, vectors, first, numeric):
    dense = tower(w, "bottom", numeric)
    pairs = explicit_pairs(torch.stack([dense, *of_one_width(w, vectors)], dim=1))
    return linear(w, "head", tower(w, "top", torch.cat([dense, pairs], dim=1)))[:, 0]


def xdeepfm(w, vectors, first, numeric):
    vectors = of_one_width(w, vectors)
    x0 = x = with_numbers(w, "numbers.weight", vectors, numeric)
    sums = []
    for k in range(count(w, "cin.layers.{}.weight")):
        weight, bias = w[f"cin.layers.{k}.weight"], w[f"cin.layers.{k}.bias"]
        products = [a * b for a in x for b in x0]
        x = [
            bias[h] + sum(c * p for c, p in zip(weight[h], products, strict=True)) for h in range(len(weight))
        ]
        sums += [v.sum(1) for v in x]
    explicit = torch.stack(sums, dim=1) @ w["explicit.weight"][0]
    return lr(w, vectors, first, numeric) + explicit + dnn(w, vectors, first, numeric)


def autoint(w, vectors, first, numeric, heads=2):
    vectors = of_one_width(w, vectors)
    x = torch.stack(with_numbers(w, "numbers.weight", vectors, numeric), dim=1)
    for k in range(count(w, "attention.{}.project.weight")):
        query, key, value = (x @ m.T for m in w[f"attention.{k}.project.weight"].chunk(3))
        attended = []
        for q, key_part, v in zip(*(m.chunk(heads, dim=2) for m in (query, key, value)), strict=True):
            scores = torch.einsum("nid,njd->nij", q, key_part)
            attended.append(torch.einsum("nij,njd->nid", softmax(scores, dim=2), v))
        residual = f"attention.{k}.residual.weight"
        x = relu(torch.cat(attended, dim=2) + (x @ w[residual].T if residual in w else x))
    deep = tower(w, "deep", flat(vectors, numeric))
    return linear(w, "head", torch.cat([x.flatten(1), deep], dim=1))[:, 0]


def fibinet(w, vectors, first, numeric):
    fields = with_numbers(w, "numbers.weight", of_one_width(w, vectors), numeric)
    means = torch.stack([v.mean(1) for v in fields], dim=1)
    scores = relu(linear(w, "weigh.up", relu(linear(w, "weigh.down", means))))
    weighted = [v * scores[:, [i]] for i, v in enumerate(fields)]
    matrices, pairs = w["products.weight"], []
    for some in (fields, weighted):
        for p, (i, j) in enumerate(itertools.combinations(range(len(some)), 2)):
            matrix = matrices[{1: 0, len(some) - 1: i}.get(len(matrices), p)]
            pairs.append((some[i] @ matrix) * some[j])
    return lr(w, vectors, first, numeric) + linear(w, "head", tower(w, "deep", torch.cat(pairs, dim=1)))[:, 0]


def masked(w, name, x0, x):
    mask = linear(w, f"{name}.mask.2", relu(linear(w, f"{name}.mask.0", x0)))
    return relu(norm(w, f"{name}.deep.1", (x * mask) @ w[f"{name}.deep.0.weight"].T))


def masknet(w, vectors, first, numeric, structure="parallel"):
    x0, start, normed = flat(vectors, numeric), 0, []
    for v in vectors:
        columns = {k: w[f"norm.{k}"][start : start + v.shape[1]] for k in ("weight", "bias")}
        normed.append(norm({f"n.{k}": c for k, c in columns.items()}, "n", v))
        start += v.shape[1]
    x = flat(normed, numeric)
    blocks = range(count(w, "blocks.{}.mask.0.weight"))
    if structure == "parallel":
        x = torch.cat([masked(w, f"blocks.{k}", x0, x) for k in blocks], dim=1)
    else:
        for k in blocks:
            x = masked(w, f"blocks.{k}", x0, x)
    return linear(w, "head", tower(w, "deep", x))[:, 0]


def finalmlp(w, vectors, first, numeric):
    one, two = (tower(w, name, flat(vectors, numeric)) for name in ("deep1", "deep2"))
    bilinear = torch.einsum("ni,ij,nj->n", one, w["fusion"][0], two)
    return linear(w, "linear", torch.cat([one, two], dim=1))[:, 0] + bilinear


def finalnet(w, vectors, first, numeric):
    gated, x0 = flat(vectors, numeric), flat(vectors, numeric)
    if "gate.mix.weight" in w:
        fields = of_one_width(w, vectors)
        weight, bias = w["gate.mix.weight"], w["gate.mix.bias"]
        factors = [
            1 + bias[i] + sum(c * v for c, v in zip(weight[i], fields, strict=True))
            for i in range(len(fields))
        ]
        gated = flat([*fields, *(f * v for f, v in zip(factors, fields, strict=True))], numeric)
    logits = []
    for block, x in ((1, gated), (2, x0)):
        for place in (0, 3):
            y = linear(w, f"deep{block}.{place}", x)
            half = y.shape[1] // 2
            x = relu(torch.cat([y[:, :half], y[:, :half] * y[:, half:]], dim=1))
        logits.append(linear(w, f"head{block}", x)[:, 0])
    return sum(logits) / 2


def wukong(w, vectors, first, numeric):
    x = torch.stack([tower(w, "bottom", numeric), *of_one_width(w, vectors)], dim=1)
    for k in range(count(w, "layers.{}.mix.weight")):
        name = f"layers.{k}"
        mixed = torch.einsum("rf,nfd->nrd", w[f"{name}.mix.weight"], x)
        pairs = norm(w, f"{name}.fmb.0", torch.einsum("nfd,nrd->nfr", x, mixed).flatten(1))
        made = linear(w, f"{name}.fmb.3", relu(linear(w, f"{name}.fmb.1", pairs)))
        combined = torch.einsum("of,nfd->nod", w[f"{name}.lcb.weight"], x)
        y = torch.cat([made.view(len(x), -1, x.shape[2]), combined], dim=1)
        residual = f"{name}.residual.weight"
        x = norm(w, f"{name}.norm", y + (torch.einsum("of,nfd->nod", w[residual], x) if residual in w else x))
    return linear(w, "head", tower(w, "top", x.flatten(1)))[:, 0]


def rankmixer(w, vectors, first, numeric):
    tokens = count(w, "project.{}.weight")
    pieces = torch.tensor_split(flat(vectors, numeric), tokens, dim=1)
    x = [linear(w, f"project.{t}", piece) for t, piece in enumerate(pieces)]
    for k in range(count(w, "blocks.{}.networks.up")):
        name = f"blocks.{k}"
        parts = [token.chunk(tokens, dim=1) for token in x]
        mixed = [torch.cat([part[h] for part in parts], dim=1) for h in range(tokens)]
        x = [norm(w, f"{name}.norms.0", m + token) for m, token in zip(mixed, x, strict=True)]
        made = []
        for t, token in enumerate(x):
            up, down = (w[f"{name}.networks.{k}"][t] for k in ("up", "down"))
            up_bias, down_bias = (w[f"{name}.networks.{k}_bias"][t] for k in ("up", "down"))
            made.append(gelu(token @ up + up_bias) @ down + down_bias)
        x = [norm(w, f"{name}.norms.1", m + token) for m, token in zip(made, x, strict=True)]
    return linear(w, "head", tower(w, "deep", sum(x) / tokens))[:, 0]


FORMULAS = {
    "lr": (lr, {}),
    "fm": (fm, {}),
    "dnn": (dnn, {}),
    "wide_deep": (wide_deep, {}),
    "deepfm": (deepfm, {}),
    "dcnv2": (dcnv2, {"cross_layers": 2}),
    "dlrm": (dlrm, {"bottom": [5]}),
    "xdeepfm": (xdeepfm, {"cin": [3, 2]}),
    "autoint": (autoint, {"layers": 2, "head_width": 3}),
    "fibinet": (fibinet, {}),
    "gdcn": (dcnv2, {"cross_layers": 2}),
    "masknet": (masknet, {"blocks": [6, 5]}),
    "finalmlp": (finalmlp, {}),
    "finalnet": (finalnet, {}),
    "wukong": (wukong, {"layers": 2, "fmb": 3, "lcb": 2, "rank": 2, "fmb_hidden": [7]}),
    "rankmixer": (rankmixer, {"tokens": 2, "width": 6}),
}
"""Model -> its formula, and the arguments with which the formula computes; `hidden` may be any two widths."""
