import pytest

from satrap.errors import ConfigError
from satrap.optim import SGD, Adagrad, Adam, RowWiseAdagrad, from_dict, names

ALL = [
    SGD(lr=0.1),
    Adagrad(lr=0.1, eps=1e-3),
    RowWiseAdagrad(lr=0.1, initial_accumulator=0.2),
    Adam(lr=0.1, betas=(0.8, 0.9)),
]


@pytest.mark.parametrize("optimizer", ALL, ids=lambda o: o.name)
def test_settings_come_back_from_plain_data(optimizer):
    data = optimizer.to_dict()
    assert data["name"] == optimizer.name
    assert from_dict(data) == optimizer
    as_json = {k: list(v) if isinstance(v, tuple) else v for k, v in data.items()}
    assert from_dict(as_json) == optimizer


def test_names_of_recipes():
    assert names() == ("sgd", "adagrad", "rowwise_adagrad", "adam")


@pytest.mark.parametrize("lr", [0.0, -1.0, float("nan")])
@pytest.mark.parametrize("kind", [SGD, Adagrad, RowWiseAdagrad, Adam])
def test_a_rate_must_be_positive(kind, lr):
    with pytest.raises(ConfigError, match="lr must be > 0"):
        kind(lr=lr)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "sdg", "lr": 1}, "'sdg' is unknown"),
        ({"name": "sgd", "lr": 1, "momentun": 0.9}, "no argument 'momentun'"),
        ({"name": "sgd"}, "needs a learning rate"),
    ],
)
def test_impossible_settings_are_named(settings, message):
    with pytest.raises(ConfigError, match=message):
        from_dict(settings)
