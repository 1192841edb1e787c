"""Typical first attempts with scikit-learn and boosted trees, on the columns that a recipe uses."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

from satrap.config import Recipe
from satrap.data.encode.encoder import MISSING
from satrap.schema import Categorical, Numeric

MOST_CATEGORIES = 255
"""Limit for columns that scikit-learn's trees use as categories; ids of other columns become numbers."""


class Columns:
    """The columns of a recipe, each once: numbers, categories, and texts of several values."""

    def __init__(self, recipe: Recipe) -> None:
        self.numbers: list[str] = []
        self.categories: list[str] = []
        self.several: dict[str, str] = {}
        self._missing = recipe.sections.data.missing or list(MISSING)
        for name, keys in recipe.sections.features.items():
            column = keys.column or name
            if isinstance(keys, Numeric) and keys.of_ids:
                continue  # its column is an id, and a category
            if not isinstance(keys, Categorical):
                if column not in self.numbers:
                    self.numbers.append(column)
            elif keys.multi:
                self.several[column] = keys.separator
            elif keys.boundaries is None:
                self.categories.append(column)
        self.categories = [name for name in self.categories if name not in self.numbers]
        [self._label] = recipe.sections.labels

    def inputs(self, rows: pd.DataFrame) -> pd.DataFrame:
        texts = rows[[*self.categories, *self.several]].astype(str)
        numbers = rows[self.numbers].astype(str)
        numbers = numbers.mask(numbers.isin(self._missing)).astype(float)
        return pd.concat([numbers, texts], axis=1)

    def target(self, rows: pd.DataFrame) -> Any:
        values = rows[self._label.column or self._label.name]
        if self._label.positive:
            return values.astype(str).isin(self._label.positive).to_numpy(int)
        return (values.astype(float) >= (self._label.threshold or 0.5)).to_numpy(int)


Rows = tuple[pd.DataFrame, pd.DataFrame]
Scores = dict[str, float]
"""`auc` of the test rows, and `validation_auc` if the model has seen the recipe's validation rows."""


def logistic_regression(columns: Columns, train: Any, valid: Any, test: Any) -> Scores:
    """Scores with the best of three C by `valid`: one-hot, numbers and their logarithms."""
    parts: list[Any] = []
    if columns.categories:
        parts.append(("one-hot", OneHotEncoder(handle_unknown="ignore"), columns.categories))
    for name, separator in columns.several.items():
        words = CountVectorizer(
            tokenizer=lambda text, s=separator: text.split(s), token_pattern=None, binary=True
        )
        parts.append((name, words, name))
    frames = [columns.inputs(rows) for rows in (train, valid, test)]
    wide = ColumnTransformer(parts, sparse_threshold=1.0).fit(frames[0]) if parts else None
    numbers = [_numbers(columns, frame, frames[0]) for frame in frames]
    scale = StandardScaler().fit(numbers[0]) if columns.numbers else None
    X = [
        sparse.hstack(
            [
                *([wide.transform(f)] if wide else []),
                *([sparse.csr_matrix(scale.transform(n))] if scale else []),
            ]
        ).tocsr()
        for f, n in zip(frames, numbers, strict=True)
    ]
    y = [columns.target(rows) for rows in (train, valid, test)]
    scores = []
    for c in (0.03, 0.3, 3.0):
        model = LogisticRegression(C=c, max_iter=200).fit(X[0], y[0])
        scores.append([roc_auc_score(y[i], model.decision_function(X[i])) for i in (1, 2)])
    best, auc = max(scores)
    return {"auc": float(auc), "validation_auc": float(best)}


def _numbers(columns: Columns, frame: pd.DataFrame, train: pd.DataFrame) -> Any:
    values = frame[columns.numbers].fillna(train[columns.numbers].mean())
    return np.hstack([values, np.log1p(values.clip(lower=0)), frame[columns.numbers].isna()])


def boosted_trees(columns: Columns, train: Any, test: Any, seed: int) -> Scores:
    """Scores of `HistGradientBoostingClassifier` with its defaults; it takes its own validation rows."""
    frames = [columns.inputs(rows) for rows in (train, test)]
    texts = [*columns.categories, *columns.several]
    few = [name for name in texts if frames[0][name].nunique() <= MOST_CATEGORIES]
    if texts:
        coding = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=np.nan).fit(
            frames[0][texts]
        )
        for frame in frames:
            frame[texts] = coding.transform(frame[texts])
    model = HistGradientBoostingClassifier(random_state=seed, categorical_features=few)
    model.fit(frames[0], columns.target(train))
    return {"auc": _auc(columns, model, test, frames[1])}


def _auc(columns: Columns, model: Any, rows: pd.DataFrame, inputs: pd.DataFrame) -> float:
    return float(roc_auc_score(columns.target(rows), model.predict_proba(inputs)[:, 1]))


ROUNDS, PATIENCE = 1000, 50
"""Most trees, and the trees without improvement on validation rows that end a training."""


def _scores(columns: Columns, model: Any, test: Rows, valid: Rows) -> Scores:
    """Return the AUC of the test rows and of the validation rows: frames, and a model's inputs of them."""
    return {"auc": _auc(columns, model, *test), "validation_auc": _auc(columns, model, *valid)}


def installed(kind: str) -> bool:
    """Whether the library of a kind of trees is installed; satrap does not need it."""
    return find_spec(kind) is not None


def _categories(columns: Columns, frames: list[pd.DataFrame]) -> tuple[list[str], list[pd.DataFrame]]:
    """Return the columns of ids and texts, and the frames with these columns as categories."""
    texts = [*columns.categories, *columns.several]
    inputs = [columns.inputs(frame) for frame in frames]
    for name in texts:
        known = pd.CategoricalDtype(sorted(inputs[0][name].unique()))
        inputs = [frame.assign(**{name: frame[name].astype(known)}) for frame in inputs]
    return texts, inputs


def lightgbm(columns: Columns, train: Any, valid: Any, test: Any, seed: int) -> Scores:
    """Scores of LightGBM with its defaults and an early stop; ids and texts are categories."""
    import lightgbm as library

    _, (fit, held, unseen) = _categories(columns, [train, valid, test])
    model = library.LGBMClassifier(n_estimators=ROUNDS, random_state=seed, n_jobs=1, verbosity=-1)
    stop = library.early_stopping(PATIENCE, verbose=False)
    model.fit(fit, columns.target(train), eval_set=[(held, columns.target(valid))], callbacks=[stop])
    return _scores(columns, model, (test, unseen), (valid, held))


def catboost(columns: Columns, train: Any, valid: Any, test: Any, seed: int) -> Scores:
    """Scores of CatBoost with its defaults and an early stop; ids and texts are categories."""
    import catboost as library

    texts = [*columns.categories, *columns.several]
    fit, held, unseen = (columns.inputs(frame) for frame in (train, valid, test))
    model = library.CatBoostClassifier(
        iterations=ROUNDS,
        random_seed=seed,
        thread_count=1,
        verbose=False,
        allow_writing_files=False,
        cat_features=texts,
    )
    model.fit(
        fit,
        columns.target(train),
        eval_set=(held, columns.target(valid)),
        early_stopping_rounds=PATIENCE,
    )
    return _scores(columns, model, (test, unseen), (valid, held))


def xgboost(columns: Columns, train: Any, valid: Any, test: Any, seed: int) -> Scores:
    """Scores of XGBoost with its defaults and an early stop; ids and texts are categories."""
    import xgboost as library

    _, (fit, held, unseen) = _categories(columns, [train, valid, test])
    model = library.XGBClassifier(
        n_estimators=ROUNDS,
        random_state=seed,
        n_jobs=1,
        enable_categorical=True,
        early_stopping_rounds=PATIENCE,
    )
    model.fit(fit, columns.target(train), eval_set=[(held, columns.target(valid))], verbose=False)
    return _scores(columns, model, (test, unseen), (valid, held))
