import pytest

from satrap.errors import ConfigError
from satrap.optim import FTRL, SGD, Adagrad, Adam, AdamW, Optimizer, RowWiseAdagrad
from satrap.store.row_spec import plan


@pytest.mark.parametrize(
    ("optimizer", "state", "width", "starts"),
    [
        (SGD(lr=1, weight_decay=0.1), 0, 0, (0, 0)),
        (SGD(lr=1, momentum=0.9), 7, 7, (0, 0)),
        (Adagrad(lr=1, initial_accumulator=0.5), 7, 7, (0.5, 0)),
        (RowWiseAdagrad(lr=1, initial_accumulator=0.5), 0, 1, (0, 0.5)),
        (Adam(lr=1), 14, 15, (0, 0)),
        (AdamW(lr=1), 14, 15, (0, 0)),
        (FTRL(lr=1), 14, 14, (0, 0)),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_layout_of_a_row(optimizer, state, width, starts):
    for dtype, weights in (("float32", 28), ("bfloat16", 16), ("float16", 16)):
        made = plan(optimizer, 7, dtype)
        assert made.width == width
        assert (made.weights, made.stride, made.row_bytes) == (
            weights,
            weights + 4 * state,
            weights + 4 * width,
        )
        assert (made.layout.state_start, made.layout.scalar_start) == starts


def test_an_optimizer_without_a_kernel_is_an_error():
    with pytest.raises(ConfigError, match="does not support optimizer Optimizer"):
        plan(Optimizer(lr=1), 8)
