"""Each model, trained for 200 steps, equals its formula in plain PyTorch, trained for as many."""

import functools

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from satrap import models
from satrap.batch import EmbeddedBatch
from tests.models.helpers import make_schema, widths
from tests.models.plain import FORMULAS, autoint, masknet

STEPS, SAMPLES, IDS = 200, 48, 7
OTHERWISE = ("lr", "fm", "dnn", "wide_deep", "dcnv2", "dlrm", "finalmlp", "wukong", "rankmixer")
"""Models whose forward pass is also compared with a formula in the tests of their modules."""
CASES = [
    *(
        (name, dims, formula, options)
        for name, (formula, options) in FORMULAS.items()
        for dims in ((4, 4, 4),)
    ),
    *((name, (4, 2, 3), *FORMULAS[name]) for name in ("fm", "deepfm", "dlrm", "wukong", "xdeepfm")),
    ("autoint", (4, 2, 3), functools.partial(autoint, heads=1), {"layers": 2, "heads": 1, "head_width": 4}),
    ("fibinet", (4, 2, 3), FORMULAS["fibinet"][0], {"bilinear": "pair", "reduction": 1}),
    ("fibinet", (4, 4, 4), FORMULAS["fibinet"][0], {"bilinear": "all", "reduction": 9}),
    ("finalnet", (4, 2, 3), FORMULAS["finalnet"][0], {"gate": True}),
    (
        "masknet",
        (4, 2, 3),
        functools.partial(masknet, structure="serial"),
        {"blocks": [6, 5], "structure": "serial", "reduction": 2},
    ),
]


def trained(parameters, logits, y):
    optimizer = torch.optim.Adam(parameters, lr=0.01)
    for _ in range(STEPS):
        optimizer.zero_grad()
        binary_cross_entropy_with_logits(logits(), y).backward()
        optimizer.step()
    return logits().detach()


def case(name, dims, formula, options):
    usual = formula is FORMULAS[name][0] and (len(set(dims)) == 1) != (name == "deepfm")
    marks = () if usual and name not in OTHERWISE else pytest.mark.slow
    return pytest.param(name, dims, formula, options, marks=marks)


@pytest.mark.parametrize(("name", "dims", "formula", "options"), [case(*each) for each in CASES])
def test_training_a_model_is_training_its_formula(name, dims, formula, options):
    torch.manual_seed(0)
    schema = make_schema(dims=dims)
    hidden = {} if name in ("lr", "fm") else {"hidden": [8, 6]}
    model = models.create(name, schema, **options, **hidden).double()
    ids = torch.randint(0, IDS, (SAMPLES, len(dims)))
    numeric = torch.randn(SAMPLES, 2, dtype=torch.float64)
    y = ((ids[:, 0] + ids[:, 1]) % 2 == (numeric[:, 0] > 0)).double()
    rows = {k: torch.randn(IDS, width, dtype=torch.float64) / 4 for k, width in widths(model, schema).items()}
    tables = {k: table.clone().requires_grad_() for k, table in rows.items()}

    def of_model():
        embeddings = {k: table[ids[:, i]] for i, (k, table) in enumerate(tables.items())}
        return model(EmbeddedBatch(SAMPLES, embeddings, numeric))[:, 0]

    weights = {k: p.detach().clone().requires_grad_() for k, p in model.named_parameters()}
    matrices = {k: table.clone().requires_grad_() for k, table in rows.items()}

    def of_formula():
        looked_up = [table[ids[:, i]] for i, table in enumerate(matrices.values())]
        vectors = [values[:, :dim] for values, dim in zip(looked_up, dims, strict=True)]
        last = torch.stack([values[:, -1] for values in looked_up], dim=1)
        return formula(weights, vectors, last, numeric)

    torch.testing.assert_close(of_model(), of_formula(), rtol=1e-10, atol=1e-10)
    ours = trained([*model.parameters(), *tables.values()], of_model, y)
    plain = trained([*weights.values(), *matrices.values()], of_formula, y)
    assert (ours - plain).abs().max() < 1e-5
    assert binary_cross_entropy_with_logits(ours, y) < 0.6
    for key, parameter in model.named_parameters():
        torch.testing.assert_close(parameter, weights[key], rtol=1e-5, atol=1e-5)
