from collections import Counter

import hypothesis

from tools_dev.tables import cases_test


def test_random_tables_are_scored_right_or_refused_in_one_clear_error() -> None:
    told: Counter[str] = Counter()
    hypothesis.seed(1)(cases_test(3, told))()
    assert told["predict 0"]
