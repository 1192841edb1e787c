from dataclasses import replace

import pytest

from satrap.tools.plan.calibration import Case
from satrap.tools.plan.simulate.measured import Measured
from tests.tools.plan.simulate.runs import run


def test_means_medians_and_sums() -> None:
    one = run(Case("servers", workers=2)).measured
    three = [replace(one, main=main) for main in (0.1, 0.2, 0.6)]
    assert Measured.mean(three).main == pytest.approx(0.3)
    assert Measured.median(three) == three[1]
    assert one.samples_per_second == pytest.approx(2 * 512 / one.seconds)
    assert one.cpu == pytest.approx(2 * (one.reader + one.main + one.exchange + one.other) + one.shards)
