import numpy as np

from satrap.exchange.collective import Alone


def test_a_process_alone_sends_to_itself() -> None:
    ranks = Alone()
    assert (ranks.rank, ranks.size) == (0, 1)
    [found] = ranks.all_to_all(np.arange(5, dtype=np.uint8), [5], [5])
    assert found.tolist() == [0, 1, 2, 3, 4]
    ranks.close()
