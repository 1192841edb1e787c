"""The lists that ranking metrics look at: groups of samples, or all items."""

from __future__ import annotations

from typing import Any

from satrap.data.catalogue import Catalogue
from satrap.data.streams import EventStream
from satrap.dense import Workers
from satrap.errors import ConfigError, DataError
from satrap.pairs import key_of_items
from satrap.settings.ranking import Ranking
from satrap.train.ranking.group_sizes import check_group_sizes
from satrap.train.ranking.item_ranking import ItemRanking, check_towers, items_of
from satrap.train.ranking.seen_items import SeenItems
from satrap.train.ranking.tower_vectors import TowerVectors, TrainedModel, towers_of


class RankedLists:
    """The lists that the ranking metrics of evaluations look at, see `Ranking`; none without such metrics.

    By default, all items are the items of the training rows and of the evaluated rows. A model that
    `Predictor.load` read knows no rows, so it has to be given the items:

    ```python
    predictor = satrap.train.Predictor.load("runs/x", ranking=Ranking(at=(10,), among="items"))
    predictor.lists.rank_among(satrap.data.read("items.parquet", schema))
    predictor.evaluate(test)["recall@10"]
    ```

    It also has to be given the training rows, with `trained_on`, if `ranking.exclude` names the user.

    Args:
        predictor: with the model and its rows.
        ranking: the metrics; None: none.
        workers: the processes that evaluate together; all call each method, with their shares of the rows.

    Attributes:
        ranking: the metrics.
        items: the items that the next evaluation ranks; None: it ranks none.

    Raises:
        ConfigError: the model has no towers, or `ranking.exclude` names neither items nor users.
    """

    def __init__(self, predictor: TrainedModel, ranking: Ranking | None, workers: Workers) -> None:
        self._predictor, self.ranking, self._workers = predictor, ranking, workers
        self._rows: Any = None
        self._known: Catalogue | None = None
        self._listed = False
        self._seen: SeenItems | None = None
        self.items: Catalogue | None = None
        if ranking is not None and ranking.of_items:
            check_towers(predictor.model, predictor.schema, ranking)

    def rank_among(self, items: Any) -> None:
        """Read all items: data with the features of an item, such as one row per item.

        Raises:
            ConfigError: the ranking metrics rank no items.
            DataError: no row has an item.
        """
        if not self.of_items:
            raise ConfigError(
                "ranking metrics among items are not enabled",
                fix='pass Ranking(at=(10,), among="items") to TrainingOptions or Predictor.load',
            )
        self._known, self._listed = self._items_of(items), True

    def trained_on(self, rows: Any) -> None:
        """Rank the items of training rows, unless `rank_among` has given all items.

        If `ranking.exclude` names the user, also note which users have which items.

        Raises:
            ConfigError: the rows are a log, which may never end.
            DataError: no row has an item.
        """
        if not self.needs_training_rows or rows is self._rows:
            return
        if isinstance(rows, EventStream):
            what, fix = "to rank", "call predictor.lists.rank_among with one row per item before fit"
            if self._listed:
                what, fix = "that users have seen", "remove exclude from ranking, or name a list of items"
            raise ConfigError(f"the items {what} are unknown, because a log may never end", fix=fix)
        if not self._listed:
            self._known = self._items_of(rows, events=True)
        if self._excludes_seen:
            assert self.ranking is not None
            assert self.ranking.exclude is not None
            model = towers_of(self._predictor.model)
            key = key_of_items(self._predictor.schema, model.tower_features["item"])
            self._seen = SeenItems.of(rows, self.ranking.exclude, key, getattr(model, "trained_events", None))
        self._rows = rows

    def prepare(self, data: Any) -> None:
        """Prepare the evaluation of a data set, if any, and check that its lists are long enough.

        Raises:
            ConfigError: the items to rank are unknown.
            DataError: no group, or not the whole of the items, has as many as the largest k.
        """
        if self.ranking is None or data is None:
            return
        most = max(self.ranking.at)
        if not self.ranking.of_items:
            check_group_sizes(data.batches(), most, self._workers)
            return
        if self._known is None:
            raise ConfigError(
                "the items to rank are unknown",
                fix="call predictor.lists.rank_among with one row per item before evaluate",
            )
        if self._excludes_seen and self._seen is None:
            raise ConfigError(
                "the items that users have seen are unknown",
                why=f"exclude: {self.ranking.exclude} leaves out the items of a user's training rows",
                fix="call predictor.lists.trained_on with the training rows before evaluate",
            )
        self.items = self._known if self._listed else self._known.joined(self._items_of(data, events=True))
        if len(self.items) < most:
            raise DataError(
                f"ranking looks at the first {most} items, but the number of items is {len(self.items)}",
                why="the first places would hold every item, whatever the model",
                fix=f"set ranking at to smaller numbers than {len(self.items)}",
            )

    @property
    def of_items(self) -> bool:
        """Whether all items are ranked."""
        return self.ranking is not None and self.ranking.of_items

    @property
    def needs_training_rows(self) -> bool:
        """Whether `trained_on` has something to read."""
        return self.of_items and (not self._listed or self._excludes_seen)

    @property
    def unknown(self) -> bool:
        """Whether all items are to be ranked, but `prepare` was not called."""
        return self.of_items and self.items is None

    def begin(self) -> ItemRanking | None:
        """Compute the vectors of all items for an evaluation; None if no items are ranked."""
        if self.ranking is None or self.items is None:
            return None
        if self._predictor.exchange.collective:
            self._workers.meet("items to rank")
        return ItemRanking(self._predictor, self.items, self.ranking, self._seen, self._workers.data.rank)

    @property
    def _excludes_seen(self) -> bool:
        return self.ranking is not None and self.ranking.excludes_seen(self._predictor.schema)

    def _items_of(self, data: Any, *, events: bool = False) -> Catalogue:
        schema, part = self._predictor.schema, TowerVectors(self._predictor, "item").schema
        predicted = getattr(self._predictor.model, "trained_events", None) if events else None
        return items_of(data, schema, part, predicted)
