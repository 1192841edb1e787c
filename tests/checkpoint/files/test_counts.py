import json

import numpy as np
import pytest

import satrap
from satrap.checkpoint.files.counts import DIGEST, apart, is_counts_file, together, without_id
from satrap.id_counts import IdCounts
from satrap.schema import Schema

COUNTS = IdCounts(np.array([3, 5], np.uint64), np.array([[1], [2]], np.uint32))
SCHEMA = Schema(
    ["y"],
    {
        "user": satrap.Categorical(dim=4),
        "n": satrap.Numeric(column="user", count="log1p", counts=COUNTS),
        "x": satrap.Numeric(transform="log1p"),
        "k": satrap.Numeric(column="user", count="log1p", counts=COUNTS.without(3)),
    },
)


def test_settings_and_files_are_joined_again():
    settings = {"schema": SCHEMA.to_dict(), "steps": 3}
    plain, files = apart(settings)
    assert files == {
        "counts-000.safetensors": COUNTS.to_bytes(),
        "counts-001.safetensors": COUNTS.without(3).to_bytes(),
    }
    assert all(map(is_counts_file, files))
    plain = json.loads(json.dumps(plain))
    assert Schema.from_dict(plain["schema"]).numeric["n"].counts is None
    joined = together(plain, files.__getitem__)
    assert Schema.from_dict(joined["schema"]) == SCHEMA
    assert joined.keys() == settings.keys()
    assert apart(joined)[0] == plain
    other = {"schema": SCHEMA.replace({"k": SCHEMA.features["n"]}).to_dict(), "steps": 3}
    assert apart(other)[0][DIGEST] != plain[DIGEST]
    with pytest.raises(KeyError):
        together(plain, {}.__getitem__)
    assert list(apart(settings, "net.")[1]) == ["net.counts-000.safetensors", "net.counts-001.safetensors"]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"schema": None},
        {"schema": SCHEMA.replace({"n": satrap.Numeric(), "k": satrap.Numeric()}).to_dict()},
    ],
)
def test_settings_without_counts_stay(settings):
    assert apart(settings) == (settings, {})
    assert together(settings, {}.__getitem__) == settings


def test_an_id_is_removed_from_a_file():
    assert IdCounts.from_bytes(without_id(COUNTS.to_bytes(), 3)).ids.tolist() == [5]
