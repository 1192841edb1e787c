"""Process and share of the data are different numbers: four processes train two copies of a network."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from satrap.checkpoint import Series
from satrap.train import Checkpointing
from tests.cluster.copies import COPIES, HELD, SIZE, make_trainer, weights
from tests.dense.processes import answers as in_processes
from tests.support.trainers import joined
from tests.support.watched import ROWS, Watched, data
from tests.train.plain import Batches

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


def test_readers_means_and_metrics_go_by_share_and_saving_by_process(tmp_path: Path) -> None:
    answers = in_processes("tests.cluster.copies", SIZE, str(tmp_path))
    assert [answer["ranks"] for answer in answers] == [[0, 0], [1, 0], [2, 1], [3, 1]]
    whole = [answer["whole"] for answer in answers]

    # The oracle: one process and the batches of both shares, joined.
    shares = [list(data(share, COPIES).batches(epoch)) for epoch in range(2) for share in range(COPIES)]
    steps = [
        list(step) for first in (0, COPIES) for step in zip(*shares[first : first + COPIES], strict=True)
    ]
    reference = make_trainer()
    result = reference.fit(Batches([joined(step) for step in steps]))
    metrics = reference.evaluate(Batches([batch for held in HELD for batch in held]))
    for each in whole:
        np.testing.assert_allclose(each["weights"], weights(reference), atol=1e-6)
        assert each["weights"] == whole[0]["weights"]
        assert (each["samples"], each["steps"]) == (result.samples, result.steps) == (2 * ROWS, len(steps))
        assert each["total"] == 2 * ROWS
        assert each["metrics"]["samples"] == metrics["samples"]
        assert each["metrics"]["logloss"] == pytest.approx(metrics["logloss"], abs=1e-6)
    reference.close()

    # Processes of a copy read the same batches, those of different copies read no sample in common.
    assert whole[0]["seen"] == whole[1]["seen"]
    assert whole[2]["seen"] == whole[3]["seen"]
    samples = [sorted(sample for batch in each["seen"] for sample in batch) for each in whole]
    assert sorted(samples[0] + samples[2]) == sorted([*range(ROWS)] * 2)

    # Process 0 writes one network, and what each process had for itself.
    series = Series(str(tmp_path / "checkpoints"))
    files = series.manifest(5).files
    assert {name for name in files if name.startswith(("model", "worker"))} == {
        "model.safetensors",
        *(f"worker-{rank:03d}.safetensors" for rank in range(SIZE)),
    }
    for answer in answers:
        resumed, undisturbed = answer["resumed"], answer["whole"]
        assert resumed["seen"] == undisturbed["seen"][5:]
        assert {**resumed, "seen": []} == {**undisturbed, "seen": []}

    # One process goes on with both shares: what four positions say of two shares is read once.
    shutil.copytree(series.place(5), tmp_path / "one" / Path(series.place(5)).name)
    trainer = make_trainer()
    last = trainer.fit(data(0, 1), epochs=2, checkpoint=Checkpointing(str(tmp_path / "one")), resume=True)
    assert isinstance(trainer.model, Watched)
    before = [sample for rank in (0, 2) for batch in whole[rank]["seen"][:5] for sample in batch]
    after = [sample for batch in trainer.model.seen for sample in batch]
    assert sorted(before + after) == sorted([*range(ROWS)] * 2)
    assert last.samples == 2 * ROWS
    trainer.close()
