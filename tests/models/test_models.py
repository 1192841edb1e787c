"""What holds for every model of the zoo, and the registry."""

import inspect
from pathlib import Path

import pytest
import torch
from sklearn.metrics import roc_auc_score

from satrap import models
from satrap.batch import EmbeddedBatch
from satrap.errors import ConfigError
from satrap.schema import Categorical, Label, Numeric, Schema, Vector
from tests.models.helpers import fit, make_batch, make_schema
from tests.models.retrieval.histories import NAMES as NEXT_ITEM
from tests.models.sequence.histories import NAMES as HISTORIES

NAMES = [name for name in models.names() if name not in (*HISTORIES, *NEXT_ITEM, "two_tower", "esmm")]
"""Models of pooled features, any labels and no arguments; the others have their tests in their own files."""
VARIANTS = [
    *((name, {}) for name in NAMES),
    ("dnn", {"hidden": []}),
    ("dnn", {"dropout": 0.3, "batch_norm": True}),
    ("deepfm", {"hidden": [5], "batch_norm": True}),
    ("dcnv2", {"rank": 3}),
    ("dcnv2", {"structure": "stacked", "cross_layers": 1}),
    ("dcnv2", {"structure": "stacked", "bottom": [16, 4], "rank": 3, "batch_norm": True}),
    ("dlrm", {"bottom": []}),
    ("finalmlp", {"heads": 4, "hidden": [16], "hidden2": [8, 12]}),
    ("finalmlp", {"context1": ["c0"], "context2": ["c1", "c2"]}),
    ("finalmlp", {"context1": ["c0"]}),
    ("xdeepfm", {"cin": [5]}),
    ("autoint", {"layers": 1, "heads": 1, "head_width": 8, "hidden": []}),
    ("autoint", {"layer_norm": True, "hidden": [16]}),
    ("fibinet", {"bilinear": "pair", "reduction": 1}),
    ("gdcn", {"rank": 3, "structure": "stacked", "bottom": [16, 4]}),
    ("masknet", {"structure": "serial", "blocks": [16, 8], "hidden": []}),
    ("masknet", {"blocks": [16], "reduction": 0.1, "normalise": False}),
    ("finalnet", {"gate": True, "batch_norm": True, "hidden2": [8]}),
    ("wukong", {"layers": 1, "fmb": 2, "lcb": 2, "rank": 3, "fmb_hidden": [], "bottom": []}),
    ("rankmixer", {"layers": 1, "tokens": 3, "width": 6, "expansion": 2, "hidden": [5]}),
    ("mmoe", {"experts": 1}),
    ("mmoe", {"experts": 4, "expert_hidden": [16], "hidden": [], "batch_norm": True}),
    ("ple", {"levels": 1, "own_experts": 1, "shared_experts": 1}),
    ("ple", {"levels": 3, "expert_hidden": [16], "dropout": 0.1}),
]
ONE_WIDTH = ["fm", "deepfm", "dlrm", "xdeepfm", "autoint", "fibinet", "wukong"]
"""Models that bring the vectors of all features to one width."""
NEED_CATEGORICAL = [*ONE_WIDTH, "wide_deep"]


@pytest.mark.parametrize(("name", "options"), VARIANTS)
@pytest.mark.parametrize("labels", [("y",), ("a", "b", "c")])
@pytest.mark.parametrize("numbers", [0, 2])
def test_shape_and_gradients(name, options, labels, numbers):
    schema = make_schema(numbers=numbers, labels=labels)
    torch.manual_seed(1)
    model = models.create(name, schema, **options)
    batch = make_batch(model, schema, size=64)
    logits = model(batch)
    assert logits.shape == (64, len(labels))
    assert logits.dtype == torch.float32
    (logits * torch.randn(logits.shape)).sum().backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.abs().sum() > 0, parameter_name
    for feature, rows in batch.embeddings.items():
        assert rows.grad.abs().sum() > 0, feature


@pytest.mark.parametrize("name", NAMES)
def test_each_label_has_its_own_output(name):
    schema = make_schema(labels=("a", "b"))
    torch.manual_seed(0)
    model = models.create(name, schema, **({} if name in ("lr", "fm") else {"hidden": [16]}))
    batch = make_batch(model, schema)
    y = torch.tensor([[1.0, 0.0]]).expand(batch.size, 2)
    optimizer = torch.optim.Adam([*model.parameters(), *batch.embeddings.values()], lr=0.05)
    for _ in range(25):
        optimizer.zero_grad()
        torch.nn.functional.binary_cross_entropy_with_logits(model(batch), y).backward()
        optimizer.step()
    logits = model(batch)
    assert (logits[:, 0] > 0).all()
    assert (logits[:, 1] < 0).all()


@pytest.mark.parametrize("name", NAMES)
def test_a_multiclass_label_has_an_output_per_class(name):
    kinds = {"a": {}, "b": {"kind": "multiclass", "classes": 3}, "c": {"kind": "regression"}}
    labels = [Label(name=name, **arguments) for name, arguments in kinds.items()]
    schema = make_schema(labels=labels)
    model = models.create(name, schema)
    batch = make_batch(model, schema)
    logits = model(batch)
    assert logits.shape == (6, 5)
    logits[:, 3].sum().backward()  # the last class has weights of its own
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_a_block_gives_the_same_as_separate_tensors(name):
    schema = make_schema()
    model = models.create(name, schema)
    batch = make_batch(model, schema)
    with torch.no_grad():
        block = torch.stack(list(batch.embeddings.values()), dim=1)
        views = {feature: block[:, i] for i, feature in enumerate(batch.embeddings)}
        blocked = EmbeddedBatch(batch.size, views, batch.numeric, blocks=[(tuple(views), block)])
        assert torch.equal(model(batch), model(blocked))


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_state_dict_restores_the_logits(name, options):
    schema = make_schema()
    first, second = (models.create(name, schema, **options).eval() for _ in range(2))
    batch = make_batch(first, schema)
    if "hidden" not in options and name not in ("lr", "fm"):
        assert not torch.equal(first(batch), second(batch))
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(batch), second(batch))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("labels", [("y",), ("a", "b")])
def test_dims_may_differ(name, labels):
    schema = make_schema(dims=(8, 8, 3), labels=labels)
    model = models.create(name, schema)
    batch = make_batch(model, schema)
    logits = model(batch)
    assert logits.shape == (6, len(labels))
    (logits * torch.randn(logits.shape)).sum().backward()
    assert [k for k, rows in batch.embeddings.items() if not rows.grad.abs().sum() > 0] == []
    assert [k for k, p in model.named_parameters() if p.grad is None] == []
    matrices = [tuple(p.shape) for k, p in model.named_parameters() if k.startswith("vectors.maps")]
    assert matrices == ([(8, 3)] if name in ONE_WIDTH else [])


@pytest.mark.parametrize("name", ONE_WIDTH)
def test_the_width_of_the_vectors_is_an_argument(name):
    schema = make_schema(dims=(8, 8, 3))
    model = models.create(name, schema, vector_width=4)
    shapes = {k: tuple(p.shape) for k, p in model.named_parameters() if k.startswith("vectors.maps")}
    assert shapes == {f"vectors.maps.{i}.weight": (4, dim) for i, dim in enumerate((8, 8, 3))}
    assert model(make_batch(model, schema)).shape == (6, 1)
    equal = make_schema()
    torch.manual_seed(0)
    usual = models.create(name, equal)
    torch.manual_seed(0)
    asked = models.create(name, equal, vector_width=8)
    assert usual.state_dict().keys() == asked.state_dict().keys()
    batch = make_batch(usual, equal)
    assert torch.equal(usual(batch), asked(batch))


@pytest.mark.parametrize("name", NAMES)
def test_numbers_only(name):
    schema = make_schema(dims=())
    if name in NEED_CATEGORICAL:
        with pytest.raises(ConfigError, match="at least one categorical"):
            models.create(name, schema)
    else:
        options = {"tokens": 2} if name == "rankmixer" else {}  # two numbers are two columns
        model = models.create(name, schema, **options)
        assert model(make_batch(model, schema)).shape == (6, 1)


@pytest.mark.parametrize("name", NAMES)
def test_unpooled_features_and_missing_labels_are_refused(name):
    unpooled = Schema(
        ["y"], {"a": Categorical(dim=4), "list": Categorical(dim=4, multi=True, pooling="none")}
    )
    with pytest.raises(ConfigError, match="pooling is none in list"):
        models.create(name, unpooled)
    with pytest.raises(ConfigError, match="no labels"):
        models.create(name, make_schema(labels=()))


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_batch_gives_no_logits(name):
    schema = make_schema()
    model = models.create(name, schema).eval()
    assert model(make_batch(model, schema, size=0)).shape == (0, 1)


@pytest.mark.parametrize("name", NAMES)
def test_row_widths(name):
    for labels in (("y",), ("a", "b")):
        model = models.create(name, make_schema(labels=labels))
        extra = getattr(model, "embedding_dims", None)
        if name == "lr":
            assert extra == dict.fromkeys(("c0", "c1", "c2"), len(labels))
        elif name in ("fm", "wide_deep", "deepfm", "xdeepfm", "fibinet"):
            assert extra == dict.fromkeys(("c0", "c1", "c2"), 8 + len(labels))
        else:
            assert extra is None


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in ("mmoe", "ple", "wukong") else n for n in NAMES]
)
def test_an_exclusive_or_needs_more_than_a_linear_model(name):
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(0, 10, (600, 2), generator=generator)
    y = ((ids[:, :1] + ids[:, 1:]) % 2).float()
    schema = make_schema(dims=(4, 4), numbers=1)
    torch.manual_seed(0)
    options = {} if name in ("lr", "fm") else {"hidden": [24]}
    if name == "rankmixer":  # this learning rate is too high for its default width
        options |= {"tokens": 2, "width": 16}
    model = models.create(name, schema, **options)
    logits = fit(model, schema, ids, torch.randn(600, 1, generator=generator), y, steps=80)
    auc = roc_auc_score(y[:, 0], logits[:, 0])
    assert auc < 0.65 if name == "lr" else auc > 0.98


def test_unknown_names_and_arguments_are_refused_with_the_nearest():
    schema = make_schema()
    with pytest.raises(
        ConfigError, match=r"model 'deep_fm' is unknown\n  what to do: did you mean 'deepfm'\?"
    ):
        models.create("deep_fm", schema)
    with pytest.raises(ConfigError, match=r"no argument 'hiden'\n  what to do: did you mean 'hidden'\?"):
        models.create("dnn", schema, hiden=[8])
    with pytest.raises(ConfigError, match=r"model lr has no argument 'hidden'\n.*takes no arguments"):
        models.create("lr", schema, hidden=[8])


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("dnn", {"hidden": 256}, "hidden must be a list"),
        ("dnn", {"hidden": "256"}, "hidden must be a list"),
        ("dnn", {"hidden": [0]}, "whole number >= 1, got 0"),
        ("dnn", {"hidden": [1.5]}, r"must be a whole number, got 1\.5"),
        ("dnn", {"dropout": 1.0}, "dropout must be >= 0 and < 1"),
        ("dnn", {"dropout": "no"}, "dropout must be a number"),
        ("dcnv2", {"cross_layers": 0}, "cross_layers must be"),
        ("dcnv2", {"rank": -1}, "rank must be"),
        ("dcnv2", {"structure": "serial"}, "structure 'serial' is unknown"),
        ("finalmlp", {"heads": 3}, "must divide the output widths 128 and 128"),
        ("finalmlp", {"heads": 0}, "heads must be"),
        ("xdeepfm", {"cin": []}, "cin must have at least one layer"),
        ("xdeepfm", {"cin": [4, 0]}, "the width of a layer of cin must be"),
        ("autoint", {"heads": 0}, "heads must be"),
        ("autoint", {"layers": 0}, "layers must be"),
        ("fibinet", {"bilinear": "some"}, "bilinear 'some' is unknown"),
        ("fibinet", {"reduction": 0}, "reduction must be"),
        ("gdcn", {"rank": -1}, "rank must be"),
        ("masknet", {"blocks": []}, "MaskNet needs blocks"),
        ("masknet", {"blocks": [4, 0]}, "the width of a block must be"),
        ("masknet", {"reduction": 0}, "reduction > 0"),
        ("masknet", {"structure": "stacked"}, "structure 'stacked' is unknown"),
        ("finalnet", {"hidden": [7]}, "widths of factorized layers must be even, got 7"),
        ("wukong", {"rank": 0}, "rank must be"),
        ("rankmixer", {"tokens": 7}, "cannot make 7 tokens of width 64 from 26 columns"),
        ("rankmixer", {"tokens": 32}, "set tokens to at most 26"),
        ("mmoe", {"experts": 0}, "the number of experts must be"),
        ("ple", {"levels": 0}, "levels must be"),
        ("ple", {"shared_experts": 0}, "the number of experts must be"),
        ("finalmlp", {"context1": ["nobody"]}, "'nobody' is not a categorical feature"),
    ],
)
def test_impossible_arguments_are_refused(name, options, message):
    with pytest.raises(ConfigError, match=message):
        models.create(name, make_schema(), **options)


def test_products_need_two_vectors():
    for name, words in (("dlrm", "two vectors"), ("fibinet", "two fields")):
        with pytest.raises(ConfigError, match=words):
            models.create(name, make_schema(dims=(4,), numbers=0))
        assert models.create(name, make_schema(dims=(4,), numbers=1)) is not None


def test_arguments_lists_the_defaults():
    assert models.arguments("lr") == {}
    assert models.arguments("fm") == {"vector_width": None}
    assert models.arguments("dnn") == {"hidden": (256, 128), "dropout": 0.0, "batch_norm": False}


@pytest.mark.parametrize("name", models.names())
def test_each_model_is_one_short_file(name):
    source = Path(inspect.getfile(models._MODELS[name]))
    assert source.stem == name
    assert (
        len(source.read_text().splitlines()) <= 130
    )  # a pass, its initial weights, and its order for stages


@pytest.mark.parametrize("name", NAMES)
def test_a_vector_is_as_many_numbers(name):
    categorical = {f"c{i}": Categorical(dim=8) for i in range(3)}
    one = Schema(["y"], categorical | {"n": Numeric(), "v": Vector(dim=4)})
    many = Schema(["y"], categorical | {f"n{i}": Numeric() for i in range(5)})
    made = []
    for schema in (one, many):
        torch.manual_seed(0)
        made.append(models.create(name, schema))
    batch = make_batch(made[1], many)
    assert batch.numeric.shape[1] == one.numeric_width == 5
    assert torch.equal(*(model(batch) for model in made))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_each_model_computes_under_autocast(name, dtype):
    schema = make_schema()
    torch.manual_seed(1)
    model = models.create(name, schema)
    batch = make_batch(model, schema, size=64)
    wide = model(batch)
    with torch.autocast("cpu", dtype=dtype):
        short = model(batch)
    torch.testing.assert_close(short.float(), wide, atol=0.05, rtol=0.05)
    short.float().mean().backward()
    for tensor in (*model.parameters(), *batch.embeddings.values()):
        assert tensor.grad.dtype == torch.float32
        assert torch.isfinite(tensor.grad).all()
