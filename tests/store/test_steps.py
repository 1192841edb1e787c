import pytest

from satrap.errors import ConfigError
from satrap.optim import SGD, Adagrad, Adam, Optimizer, RowWiseAdagrad
from satrap.store.steps import plan


@pytest.mark.parametrize(
    ("optimizer", "width", "starts"),
    [
        (SGD(lr=1), 0, (0, 0)),
        (Adagrad(lr=1, initial_accumulator=0.5), 8, (0.5, 0)),
        (RowWiseAdagrad(lr=1, initial_accumulator=0.5), 1, (0, 0.5)),
        (Adam(lr=1), 17, (0, 0)),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_state_of_a_row(optimizer, width, starts):
    layout = plan(optimizer, 8)
    assert layout.width == width
    assert (layout.layout.state_start, layout.layout.scalar_start) == starts


def test_an_optimizer_without_a_kernel_is_an_error():
    with pytest.raises(ConfigError, match="no optimizer Optimizer"):
        plan(Optimizer(lr=1), 8)
