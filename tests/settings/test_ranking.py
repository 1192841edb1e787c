"""What ranking metrics need from their lengths and from a schema."""

from __future__ import annotations

import pytest

from satrap.errors import ConfigError
from satrap.schema import Categorical, Label, Numeric, Schema
from satrap.settings.ranking import Ranking
from satrap.settings.training import TrainingOptions

FEATURES = {"user": Categorical(dim=4)}


def test_the_names_are_the_metrics_at_each_length() -> None:
    names = Ranking(at=(5, 10)).names
    assert names[:2] == ("hit_rate@5", "recall@5")
    assert set(names[6:]) == {f"{name.removesuffix('@5')}@10" for name in names[:6]}


@pytest.mark.parametrize("at", [(), (0,), (3, 3)])
def test_lengths_below_one_or_given_twice_are_refused(at: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="different whole numbers >= 1"):
        Ranking(at=at)


def test_a_schema_without_groups_or_binary_labels_is_refused() -> None:
    ranking = Ranking(at=(5,))
    ranking.check(Schema(["clicked"], FEATURES, group="user"))
    with pytest.raises(ConfigError, match="needs a group column"):
        ranking.check(Schema(["clicked"], FEATURES))
    implicit = Schema([Label(name="seen", implicit=True)], FEATURES, group="user")
    Ranking(at=(5,), among="items").check(implicit)
    with pytest.raises(ConfigError, match="the label is implicit"):
        ranking.check(implicit)
    with pytest.raises(ConfigError, match="exclude: seen has no effect"):
        Ranking(at=(5,), exclude="seen")
    with pytest.raises(ConfigError, match="needs a binary label"):
        ranking.check(Schema([Label(name="stars", kind="regression")], FEATURES, group="user"))


def test_each_metric_can_be_the_monitor() -> None:
    options = TrainingOptions(ranking=Ranking(at=(10,)), monitor="ndcg@10")
    assert options.directions["ndcg@10"]
    with pytest.raises(ConfigError, match="'ndcg@5' is not a metric") as caught:
        TrainingOptions(ranking=Ranking(at=(10,)), monitor="ndcg@5")
    assert "did you mean 'ndcg@10'" in str(caught.value.fix)


IMPLICIT = [Label(name="seen", implicit=True)]


def test_an_implicit_label_has_no_groups_and_no_logloss() -> None:
    schema = Schema(IMPLICIT, {"x": Numeric()})
    with pytest.raises(ConfigError, match="the label is implicit") as error:
        Ranking((5,)).check(schema)
    assert error.value.fix == "set among: items"
    options = TrainingOptions().suited(IMPLICIT)
    assert (options.ranking, options.monitor) == (Ranking((10,), among="items"), "ndcg@10")
    with pytest.raises(ConfigError, match="monitor logloss is not a metric of an implicit label"):
        TrainingOptions(monitor="logloss").suited(IMPLICIT)
