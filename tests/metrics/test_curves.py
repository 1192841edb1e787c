import numpy as np
import pytest
from sklearn.calibration import calibration_curve
from sklearn.metrics import auc, roc_auc_score, roc_curve

from satrap.metrics.curves import ScoreCurves


def samples(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    random = np.random.default_rng(seed)
    predictions = (1 / (1 + np.exp(-random.normal(-1, 2, count)))).astype(np.float32)
    labels = random.random(count) < predictions**1.3
    return predictions, labels, random.integers(1, 4, count).astype(np.float32)


def of(*batches: tuple[np.ndarray, np.ndarray, np.ndarray]) -> ScoreCurves:  # type: ignore[type-arg]
    curves = ScoreCurves()
    for batch in batches:
        curves.add(*batch)
    return curves


def test_every_point_of_the_roc_curve_is_one_of_scikit_learns() -> None:
    predictions, labels, weights = samples(3000)
    curves = of(*((predictions[i::3], labels[i::3], weights[i::3]) for i in range(3)))
    fpr, tpr = curves.roc(150)
    assert (fpr[0], tpr[0], fpr[-1], tpr[-1]) == (0, 0, 1, 1)
    expected = roc_curve(labels, predictions, sample_weight=weights, drop_intermediate=False)[:2]
    distance = np.abs(np.stack([fpr, tpr])[:, :, None] - np.stack(expected)[:, None, :]).max(axis=0)
    assert distance.min(axis=1).max() < 1e-9
    assert 100 < len(fpr) <= 150
    assert auc(fpr, tpr) == pytest.approx(roc_auc_score(labels, predictions, sample_weight=weights), abs=5e-4)


def test_calibration_is_scikit_learns_in_quantiles() -> None:
    predictions, labels, _ = samples(2000)
    found = of((predictions, labels, np.ones(2000, np.float32))).calibration(20)
    observed, predicted = calibration_curve(labels, predictions, n_bins=20, strategy="quantile")
    assert found.weight.tolist() == [100.0] * 20
    assert found.observed == pytest.approx(observed)
    assert found.predicted == pytest.approx(predicted, abs=1e-6)


def test_curves_have_200_points_and_20_groups_unless_told() -> None:
    curves = of(samples(3000))
    for own, other in ((curves.roc(), curves.roc(200)), (curves.calibration(), curves.calibration(20))):
        assert [values.tolist() for values in own] == [values.tolist() for values in other]
    assert [len(curves.roc(points)[0]) for points in (199, 200, 201)] == [199, 200, 201]


def test_weights_count_like_repeated_samples() -> None:
    predictions, labels, weights = samples(500)
    times = weights.astype(int)
    repeated = of((predictions.repeat(times), labels.repeat(times), np.ones(times.sum(), np.float32)))
    weighted = of((predictions, labels, weights))
    for one, other in zip(weighted.calibration(), repeated.calibration(), strict=True):
        assert one == pytest.approx(other, rel=1e-5)
    assert weighted.auc() == pytest.approx(repeated.auc())


def test_equal_predictions_are_one_group_and_one_class_has_no_roc() -> None:
    curves = of((np.full(10, 0.25, np.float32), np.arange(10) < 4, np.ones(10, np.float32)))
    assert [values.tolist() for values in curves.calibration()] == [[0.25], [pytest.approx(0.4)], [10]]
    assert [values.tolist() for values in curves.roc()] == [[0, 1], [0, 1]]
    assert [len(v) for v in of((np.full(3, 0.5, np.float32), np.ones(3, bool), np.ones(3))).roc()] == [0, 0]
    assert [len(v) for v in ScoreCurves().calibration()] == [0, 0, 0]
