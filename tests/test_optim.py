import json
import math

import pytest
import torch

from satrap.errors import ConfigError
from satrap.optim import (
    FTRL,
    KINDS,
    SGD,
    Adagrad,
    Adam,
    AdamW,
    Constant,
    Cosine,
    Exponential,
    RowWiseAdagrad,
    Staircase,
    from_dict,
    names,
    schedule_from_dict,
)

ALL = [
    SGD(lr=0.1, momentum=0.9, nesterov=True),
    Adagrad(lr=0.1, eps=1e-3, clip=1.0),
    RowWiseAdagrad(lr=0.1, initial_accumulator=0.2, bound=2.0),
    Adam(lr=0.1, betas=(0.8, 0.9)),
    AdamW(lr=0.1),
    FTRL(lr=0.1, l1=0.5),
]


@pytest.mark.parametrize("optimizer", ALL, ids=lambda o: o.name)
def test_settings_come_back_from_plain_data(optimizer):
    data = optimizer.to_dict()
    assert data["name"] == optimizer.name
    assert from_dict(data) == optimizer
    assert from_dict(json.loads(json.dumps(data))) == optimizer


def test_names_of_recipes():
    assert names() == ("sgd", "adagrad", "rowwise_adagrad", "adam", "adamw", "ftrl")


@pytest.mark.parametrize("lr", [0.0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("kind", KINDS)
def test_a_rate_must_be_positive(kind, lr):
    with pytest.raises(ConfigError, match="lr must be > 0"):
        kind(lr=lr)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SGD(lr=1e39), "lr must be > 0 in float32"),
        (lambda: SGD(lr=3.5e38), "lr must be > 0 in float32"),
        (lambda: SGD(lr=1, clip=0), "clip must be > 0"),
        (lambda: SGD(lr=1, clip=1e39), "clip must be > 0 in float32"),
        (lambda: SGD(lr=1, bound=-1), "bound must be > 0"),
        (lambda: SGD(lr=1, bound=math.nan), "bound must be > 0"),
        (lambda: SGD(lr=1, weight_decay=-0.1), "weight_decay must be >= 0"),
        (lambda: SGD(lr=1, momentum=1.0), r"decays must be in \[0, 1\)"),
        (lambda: SGD(lr=1, nesterov=True), "nesterov needs momentum > 0"),
        (lambda: Adagrad(lr=1, initial_accumulator=-1), "initial_accumulator must be >= 0"),
        (lambda: Adagrad(lr=1, eps=0), "eps must be > 0"),
        (lambda: Adam(lr=1, betas=(0.9, 1.0)), r"decays must be in \[0, 1\)"),
        (lambda: FTRL(lr=1, beta=0), "beta must be > 0"),
        (lambda: FTRL(lr=1, l1=-1), "l1 must be >= 0"),
        (lambda: Cosine(steps=0), "steps must be >= 1"),
        (lambda: Cosine(steps=1, final=2), r"final must be in \[0, 1\]"),
        (lambda: Staircase(every=0), "every must be >= 1"),
        (lambda: Exponential(gamma=0), r"gamma must be in \(0, 1\]"),
        (lambda: Constant(warmup=-1), "warmup must be >= 0"),
    ],
)
def test_impossible_values_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "sdg", "lr": 1}, "'sdg' is unknown"),
        ({"name": "sgd", "lr": 1, "momentun": 0.9}, "no argument 'momentun'"),
        ({"name": "sgd"}, "sgd needs lr"),
        ({"name": "ftrl", "lr": 1, "weight_decay": 0.1}, "no argument 'weight_decay'"),
    ],
)
def test_impossible_settings_are_named(settings, message):
    with pytest.raises(ConfigError, match=message):
        from_dict(settings)


SCHEDULES = {
    "cosine": (
        Cosine(steps=30, final=0.1),
        lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=30, eta_min=0.1),
    ),
    "exponential": (Exponential(gamma=0.9), lambda o: torch.optim.lr_scheduler.ExponentialLR(o, gamma=0.9)),
    "staircase": (
        Staircase(every=7, gamma=0.5),
        lambda o: torch.optim.lr_scheduler.StepLR(o, step_size=7, gamma=0.5),
    ),
    "constant": (Constant(), lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda _: 1.0)),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_equal_torch(name):
    schedule, make = SCHEDULES[name]
    assert schedule.name == name
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    reference = make(optimizer)
    for step in range(31):
        assert schedule.factor(step) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-6)
        optimizer.step()
        reference.step()


def test_after_its_end_a_cosine_stays():
    assert [Cosine(steps=10, final=0.25).factor(step) for step in (10, 11, 1000)] == [0.25] * 3


def test_warm_up_grows_linearly_and_multiplies():
    assert [Constant(warmup=4).factor(step) for step in range(6)] == [0.25, 0.5, 0.75, 1, 1, 1]
    warm, cold = Cosine(steps=10, warmup=4), Cosine(steps=10)
    assert [warm.factor(s) / cold.factor(s) for s in range(5)] == pytest.approx([0.25, 0.5, 0.75, 1, 1])


@pytest.mark.parametrize("schedule", [s for s, _ in SCHEDULES.values()], ids=lambda s: s.name)
def test_schedules_come_back_from_plain_data(schedule):
    assert schedule_from_dict(json.loads(json.dumps(schedule.to_dict()))) == schedule


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "cosin", "steps": 1}, "'cosin' is unknown"),
        ({"name": "cosine"}, "cosine needs steps"),
        ({"name": "exponential"}, "exponential needs gamma"),
        ({"name": "staircase"}, "staircase needs every"),
        ({"name": "constant", "steps": 1}, "no argument 'steps'"),
    ],
)
def test_impossible_schedules_are_named(settings, message):
    with pytest.raises(ConfigError, match=message):
        schedule_from_dict(settings)
