from __future__ import annotations

import pytest

from satrap.errors import DataError, SatrapError, StoreError, TrainingError
from satrap.serve.http.errors import RequestError, status_of


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RequestError(413, "too large"), 413),
        (DataError("a value"), 422),
        (TrainingError("the model failed"), 500),
        (StoreError("the rows"), 500),
    ],
)
def test_the_callers_mistakes_are_told_from_the_servers(error: SatrapError, status: int) -> None:
    assert status_of(error) == status
