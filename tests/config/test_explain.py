from pathlib import Path

import pytest

from satrap.config.explain import shown, walk
from satrap.config.keys.sections import Sections
from satrap.optim import KINDS
from tests.config.recipes import TEXT, edited, line_of, refused


@pytest.mark.parametrize(
    ("text", "key", "nearest"),
    [
        (edited("  staleness: 4", "  stalenes: 4"), "training.stalenes", "staleness"),
        (edited("training:", "trainning:"), "trainning", "training"),
        (edited("user:   {dim: 16}", "user:   {dims: 16}"), "features.user.dims", "dim"),
        (edited("modulo: 10, ", "modulo: 10, tests: [1], "), "data.split.tests", "test"),
        (edited("transform: log1p", "transfrom: log1p"), "features.price.transfrom", "transform"),
        (edited("labels: [clicked]", "labels: [{name: a, colum: b}]"), "labels.0.colum", "column"),
        (
            TEXT + "embedding: {optimizer: {name: adam, lr: 1, beta: [0, 0]}}\n",
            "embedding.optimizer.beta",
            "betas",
        ),
        (TEXT + "dense: {optimizer: {name: adam, lr: 1, epsi: 0}}\n", "dense.optimizer.epsi", "eps"),
    ],
)
def test_unknown_key_names_file_line_key_and_nearest(
    tmp_path: Path, text: str, key: str, nearest: str
) -> None:
    error = refused(tmp_path, text=text)
    line = line_of(text, key.rpartition(".")[2])
    assert error.what.startswith(f"unknown key {key.rpartition('.')[2]!r} in ")
    assert error.where == f"{tmp_path}/recipe.yaml:{line}, key {key}"
    assert f"did you mean {nearest!r}?" in error.fix
    assert "allowed here: " in error.fix


def test_unknown_key_of_an_override(tmp_path: Path) -> None:
    error = refused(tmp_path, "training.stalenes=3")
    assert error.where == "--set training.stalenes"
    assert "did you mean 'staleness'?" in error.fix


@pytest.mark.parametrize(
    ("override", "home"),
    [
        ("training.batch_size=3", "'batch_size' belongs to data;"),
        ("epochs=3", "'epochs' belongs to training;"),
        ("features.price.dim=3", "'dim' is for categorical features: remove it"),
        ("features.user.transform=log1p", "'transform' is for numeric features: add numeric: true"),
        ("data.weight=w", "'weight' belongs to the top level;"),
        ("model.name=dcnv2", ""),
    ],
)
def test_misplaced_key_is_sent_home(tmp_path: Path, override: str, home: str) -> None:
    if not home:
        return
    assert refused(tmp_path, override).fix.startswith(home)


def test_a_key_misspelt_and_misplaced_still_gets_a_hint(tmp_path: Path) -> None:
    assert "did you mean data.batch_size?" in refused(tmp_path, "batchsize=3").fix


@pytest.mark.parametrize(
    ("override", "what"),
    [
        ("data.batch_size=two", "data.batch_size must be a whole number, got 'two'"),
        ("data.batch_size=2.5", "data.batch_size must be a whole number, got 2.5"),
        ("data.batch_size=0", "data.batch_size must be at least 1, got 0"),
        ("data.batch_size=true", "data.batch_size must be a whole number, got true"),
        ("data.shuffle=1", "data.shuffle must be true or false, got 1"),
        ("data.train=[3]", "data.train.0 must be a string, got 3"),
        ("data.format=xml", "data.format must be 'csv', 'tsv', 'parquet' or 'arrow', got 'xml'"),
        ("data.split.modulo=0", "data.split.modulo must be at least 1, got 0"),
        ("features.user.dim=wide", "features.user.dim must be a whole number, got 'wide'"),
        ("features=3", "features must be a mapping, got 3"),
        ("features.user=16", "features.user must be a mapping, got 16"),
        ("features={}", "features must have at least 1 item, got {}"),
        ("training=", "training must be a mapping, got nothing"),
        ("training.epochs=", "training.epochs must be a whole number, got nothing"),
        ("training.plateau=1.0", "training.plateau must be below 1, got 1.0"),
        ("training.clip_norm=0", "training.clip_norm must be above 0, got 0"),
        ("training.clip_norm=.nan", "training.clip_norm must be a finite number, got nan"),
        ("embedding.memory=4GB", "embedding.memory must be a size such as 512MiB or 4GiB, got '4GB'"),
        ("embedding.optimizer=adam", "embedding.optimizer must be a mapping, got 'adam'"),
        ("embedding.optimizer.lr=fast", "embedding.optimizer.lr must be a number, got 'fast'"),
        ("labels=[[a]]", "labels.0 must be a mapping, got ['a']"),
        (
            "dense.optimizer={name: adam, lr: 1, betas: [1]}",
            "dense.optimizer.betas must have at least 2 items, got [1]",
        ),
    ],
)
def test_wrong_values(tmp_path: Path, override: str, what: str) -> None:
    text = TEXT + "embedding: {optimizer: {name: adagrad, lr: 0.1}}\n"
    error = refused(tmp_path, override, text=text)
    assert error.what == what
    assert error.where.startswith(f"--set {override.partition('=')[0]}")


def test_wrong_value_in_the_file_names_the_line(tmp_path: Path) -> None:
    text = edited("staleness: 4", "staleness: -4")
    error = refused(tmp_path, text=text)
    assert error.what == "training.staleness must be at least 0, got -4"
    assert error.where == f"{tmp_path}/recipe.yaml:12, key training.staleness"


def test_unknown_kind_of_optimizer(tmp_path: Path) -> None:
    error = refused(tmp_path, "embedding.optimizer={name: adagrat, lr: 1}")
    assert error.what == "embedding.optimizer.name cannot be 'adagrat'"
    assert "did you mean 'adagrad'?" in error.fix
    assert "rowwise_adagrad" in error.fix
    assert refused(tmp_path, "dense.optimizer={lr: 1}").what == "key 'name' is missing in dense.optimizer"


@pytest.mark.parametrize(
    ("text", "what", "where"),
    [
        (edited("model: {name: dcnv2, hidden: [256, 128]}", ""), "key 'model' is missing in the recipe", ""),
        (edited("name: dcnv2, ", ""), "key 'name' is missing in model", ":9, key model"),
        (
            edited("user:   {dim: 16}", "user:   {multi: true}"),
            "key 'dim' is missing in features.user",
            ":6, key",
        ),
        (TEXT + "dense: {optimizer: {name: sgd}}\n", "key 'lr' is missing in dense.optimizer", ":13, key"),
    ],
)
def test_missing_keys(tmp_path: Path, text: str, what: str, where: str) -> None:
    error = refused(tmp_path, text=text)
    assert error.what == what
    assert where in error.where
    assert error.fix.startswith("add ")


def test_walk_meets_every_section_and_kind() -> None:
    patterns = {".".join(pattern) for pattern, _ in walk()}
    assert patterns >= {"", "data.join.[]", "data.split", "labels.[]", "features.<name>", "dense.mesh"}
    kinds = [model.__name__ for pattern, model in walk() if pattern == ("embedding", "optimizer")]
    assert sorted(kinds) == sorted(f"{kind.__name__}Keys" for kind in KINDS)


def test_every_key_is_documented() -> None:
    assert next(walk())[1] is Sections
    silent = [(p, k) for p, m in walk() for k, info in m.model_fields.items() if not info.description]
    assert silent == []


@pytest.mark.parametrize(
    ("feature", "hint"),
    [
        ("{transform: standardize}", "'transform' is for numeric features: add numeric: true; "),
        ("{missing: 1.0}", "'missing' is for numeric features: add numeric: true; "),
        (
            "{numeric: true, dim: 4}",
            "'dim' is for categorical features: remove it, or remove numeric: true; ",
        ),
        ("{type: numeric}", "give the kind with dim: 16 for ids, numeric: true for a number; "),
        ("{kind: categorical, dim: 8}", "give the kind with dim: 16 for ids, numeric: true for a number; "),
        ("{dmi: 4}", "did you mean 'dim'? "),
    ],
)
def test_a_feature_of_the_other_kind_is_told_how_to_say_so(tmp_path: Path, feature: str, hint: str) -> None:
    fix = refused(tmp_path, f"features.user={feature}").fix
    assert fix.startswith(f"{hint}allowed here: ")
    assert "numeric: true for a number" in refused(tmp_path, "features.user=16").fix


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("x" * 58, repr("x" * 58)),
        ("x" * 59, "'" + "x" * 56 + "..."),
        (None, "nothing"),
        (False, "false"),
        (2.5, "2.5"),
    ],
)
def test_values_are_shown_short(value: object, text: str) -> None:
    assert shown(value) == text
