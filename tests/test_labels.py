"""The label of a feature is found, or the error says which there are; `test_schema.py` has the others."""

import pytest

from satrap.errors import ConfigError
from satrap.labels import Label, binary_label

LABELS = [Label(name="price", kind="regression"), Label(name="liked"), Label(name="bought")]


def test_the_first_binary_label_or_the_named_one():
    assert binary_label("m", None, LABELS) is LABELS[1]
    assert binary_label("m", "bought", LABELS) is LABELS[2]


@pytest.mark.parametrize(
    ("wanted", "labels", "fix"),
    [
        ("price", LABELS, "use one of: liked, bought"),
        ("likes", LABELS, "did you mean 'liked'"),
        (None, LABELS[:1], "use count"),
        (None, [], "use count"),
    ],
)
def test_a_label_that_is_not_binary_is_refused(wanted, labels, fix):
    with pytest.raises(ConfigError, match="feature 'm': mean_label needs a binary label") as raised:
        binary_label("m", wanted, labels)
    assert fix in raised.value.fix
