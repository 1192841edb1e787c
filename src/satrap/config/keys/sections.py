"""All keys of a recipe, with type, default and meaning. The text below a key documents it."""

from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, create_model

from satrap import losses, optim, schema
from satrap.config.keys.cluster import ClusterKeys
from satrap.config.keys.data import DataKeys
from satrap.config.keys.derive import STRICT, Choice, Keys, as_list, keys_of, literal, named, of, settings
from satrap.config.keys.serving import ServingKeys
from satrap.config.keys.values import Bytes, Count, Device, Positive, Rate, Seconds, Share
from satrap.retention import Admission, Eviction
from satrap.schema import Dtype
from satrap.settings.mesh import Mesh, PipelineSchedule, Sharded
from satrap.settings.ranking import Ranking
from satrap.settings.saving import Checkpointing, Publishing
from satrap.settings.store import StoreConfig, TableSettings
from satrap.settings.tier import Tier
from satrap.settings.training import Precision, TrainingOptions
from satrap.settings.warm_start import WarmStart


class NamedModel(Keys):
    """The network. Other keys are arguments of the model, for example `hidden: [256, 128]`."""

    model_config = ConfigDict({**STRICT, "extra": "allow"})

    name: str | None = None
    """Name of a built-in model, for example deepfm or dcnv2. Give either this or `class`."""

    @property
    def own(self) -> str | None:
        """The key `class`, which is a reserved word in Python."""
        reference: str | None = getattr(self, "class")
        return reference


OWN_CLASS = """Your own class: my_model.py:MyNet, a file relative to the recipe, or package.module:MyNet. It
is called with the schema and the other keys. The run folder keeps a copy of the file."""
Model = create_model(
    "Model",
    __base__=NamedModel,
    __doc__=NamedModel.__doc__,
    **{"class": (str | None, Field(None, description=OWN_CLASS))},  # type: ignore[call-overload]
)


OPTIMIZER = named(optim.Optimizer, optim.KINDS, "Name of the optimizer.")
LOSS = replace(named(losses.PairLoss, losses.KINDS, "Name of the loss."), text=True)
SCHEDULE = named(optim.Schedule, optim.SCHEDULES, "Name of the schedule.")
ADMISSION, EVICTION, TIER = settings(Admission), settings(Eviction), settings(Tier)
TABLE = settings(TableSettings, "TableKeys")
RANKING, WARM_START = settings(Ranking), settings(WarmStart)


TEXTS = {
    "lr": "Learning rate.",
    "momentum": "Momentum factor.",
    "dampening": "Dampening of the momentum.",
    "weight_decay": "L2 penalty.",
    "nesterov": "Use Nesterov momentum.",
    "lr_decay": "Decay of the learning rate per step.",
    "initial_accumulator_value": "Initial value of the sum of squares.",
    "eps": "Added to the root.",
    "betas": "Decay of the two moments.",
    "amsgrad": "Use the AMSGrad variant.",
}


def _torch(name: str, title: str, **defaults: Any) -> type[Keys]:
    """Return the keys of an optimizer of `torch.optim`."""
    pair = Annotated[list[float], Field(min_length=2, max_length=2)]
    kinds: dict[type, Any] = {float: Share, bool: bool, list: pair}
    keys: dict[str, Any] = {
        "name": literal(name, "Name of the optimizer."),
        "lr": (Rate, Field(..., description=TEXTS["lr"])),
    }
    for key, default in defaults.items():
        keys[key] = (kinds[type(default)], Field(default, description=TEXTS[key]))
    if name == "adamw":
        keys["weight_decay"] = (Share, Field(0.01, description="Decoupled weight decay."))
    return create_model(title, __base__=Keys, __doc__=f"`torch.optim.{title.removeprefix('Torch')}`.", **keys)


_ADAM = {"betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0, "amsgrad": False}
DENSE_OPTIMIZERS: dict[str, type[Keys]] = {
    "sgd": _torch("sgd", "TorchSGD", momentum=0.0, dampening=0.0, weight_decay=0.0, nesterov=False),
    "adagrad": _torch(
        "adagrad", "TorchAdagrad", lr_decay=0.0, weight_decay=0.0, initial_accumulator_value=0.0, eps=1e-10
    ),
    "adam": _torch("adam", "TorchAdam", **_ADAM),
    "adamw": _torch("adamw", "TorchAdamW", **_ADAM),
}


class EmbeddingKeys(Keys):
    """The embedding tables."""

    optimizer: Annotated[optim.Optimizer, OPTIMIZER] = optim.EMBEDDING_DEFAULT
    """Optimizer of the rows."""
    initial_scale: Share = of(StoreConfig, "initial_scale")
    dtype: Dtype = of(StoreConfig, "dtype")
    device: Device = of(StoreConfig, "device")
    memory: Bytes | None = of(StoreConfig, "memory")
    admission: Annotated[Admission, ADMISSION] = of(StoreConfig, "admission", Admission())
    eviction: Annotated[Eviction, EVICTION] | None = of(StoreConfig, "eviction")
    tier: Annotated[Tier, TIER] | None = of(StoreConfig, "tier")


class MeshKeys(Keys):
    """Number of workers in each dimension of parallelism of the dense network."""

    data: Positive | None = None
    """Number of copies of the network, each trained on its share of the data. Default: the number of workers
    divided by `tensor` and `pipeline`."""
    tensor: Positive = of(Mesh, "tensor")
    pipeline: Positive = of(Mesh, "pipeline")


class OffloadKeys(Keys):
    """Where the optimizer state of the dense network is, and optionally its weights, if not on the device."""

    optimizer: Literal["cpu", "disk"]
    """Place of the optimizer state. cpu: host memory, for devices with too little memory. disk: files of
    `folder`, mapped into memory. In both cases the CPU computes the optimizer's steps."""
    folder: str | None = None
    """With `optimizer: disk`: folder on a fast disk of each worker's machine."""
    weights: bool = False
    """Whether weights and gradients are also there. On a GPU, each layer's weights are copied to the device
    for its forward and backward passes; this needs one worker, `precision: float32` and no
    `checkpoint_activations`. Not with `compile`, `sharded`, or a mesh with `tensor` or `pipeline`."""


class DenseKeys(Keys):
    """The dense network."""

    optimizer: Annotated[Keys, Choice(lambda value: value.get("name"), DENSE_OPTIMIZERS, "name")] = (
        DENSE_OPTIMIZERS["adam"].model_validate({"name": "adam", "lr": optim.DENSE_LR})
    )
    """Optimizer of the network's weights."""
    mesh: MeshKeys = MeshKeys()
    """How the network is spread over the workers. The number of workers is the product of the dimensions."""
    sharded: Sharded = of(Mesh, "sharded")
    shard_size: Positive | None = of(Mesh, "shard_size")
    microbatches: Positive | None = None
    """Number of parts into which each batch is cut. The network computes them one after another and takes one
    step with the gradient of all, so only the activations of one part are in memory; default 1. With
    `mesh.pipeline`, the parts move through the stages; default four times `mesh.pipeline`. The P workers of a
    pipeline idle for (P - 1) / (`stages_per_rank` * microbatches + P - 1) of a step. Not with batch
    normalisation."""
    schedule: PipelineSchedule = of(Mesh, "schedule")
    stages: list[str] = of(Mesh, "stages")
    stages_per_rank: Positive | None = of(Mesh, "stages_per_rank")
    layout: dict[str, Literal["column", "row", "alone", "experts"]] = Field(default_factory=dict)
    """With `mesh.tensor`: how linear layers are sharded, by name, as in `{"blocks.*.up": column,
    "blocks.*.down": row}`: column (by outputs, which stay sharded), row (by inputs, which a preceding column
    layer has sharded), alone (whole inputs and outputs), or experts (each worker has some of the experts).
    Default: the model's layout, else pairs of layers in its stacks, and experts."""
    precision: Precision = of(TrainingOptions, "precision")
    checkpoint_activations: bool = of(TrainingOptions, "checkpoint_activations")
    offload: OffloadKeys | None = None
    """Where the optimizer state is, for example `{optimizer: disk, folder: /ssd}`; default: on the device.
    Slower. Results are bit-identical on the device cpu, and equal up to rounding on a GPU."""
    compile: bool = of(TrainingOptions, "compile")


class TrainingKeys(Keys):
    """Schedule, learning rates and stopping."""

    mode: Literal["sync", "hybrid", "async"] = "hybrid"
    """Order of lookups and updates. sync: lookups see all updates; hybrid: lookups run `staleness` steps
    ahead; async: as hybrid, but workers do not wait for each other, and the store also holds the network's
    weights."""
    staleness: Count = 4
    """Number of a worker's own latest updates that its lookups do not see; sync: always 0."""
    staleness_warmup: Count | None = of(TrainingOptions, "staleness_warmup")
    lookahead: Count = 0
    """In mode sync: how many steps ahead rows are fetched. Rows that change in the meantime are patched, so
    results stay the same. Needs one worker or `exchange: collective`; not with eviction or admission."""
    epochs: Positive = 1
    """Number of epochs over the training rows."""
    follow: bool = False
    """With `data.stream`: at the end of the log, wait for more events; Ctrl-C or SIGTERM ends the run."""
    steps: Positive | None = None
    """Stop after this many steps; default: only `epochs` counts."""
    seed: Count = 1
    """Seed of all random choices."""
    clip_norm: Rate | None = of(TrainingOptions, "clip_norm")
    loss: Annotated[losses.PairLoss | str, LOSS] | None = None
    """Loss of a model that compares vectors, for example `{name: sampled_softmax, negatives: 256}`; or your
    own function, my_loss.py:my_loss or package.module:my_loss: (logits, batch) -> mean loss of the samples.
    Default: the loss of each label's kind, for example binary cross-entropy."""
    metrics: list[str] = Field(default_factory=list)
    """Your own functions, my_metrics.py:my_metric or package.module:my_metric: (labels, predictions) ->
    number, over all samples of an evaluation; see satrap.metrics.OwnMetrics."""
    ranking: Annotated[Ranking, RANKING] | None = of(TrainingOptions, "ranking")
    lr_schedule: Annotated[optim.Schedule, SCHEDULE] = of(TrainingOptions, "lr_schedule")
    plateau: Annotated[float, Field(gt=0, lt=1)] | None = of(TrainingOptions, "plateau", 0.1)
    patience: Positive | None = of(TrainingOptions, "patience", 2)
    monitor: str = of(TrainingOptions, "monitor")
    warm_start: Annotated[WarmStart, WARM_START] | None = None
    """Run whose weights and rows this run starts with, for example `{url: runs/monday}`; default: random
    ones. Without effect on a resumed run."""
    threads: Positive | None = None
    """PyTorch's intra-operation threads; default all cores."""
    device: Device = "cpu"
    """Device of the dense network: cpu, cuda or cuda:N."""


class CheckpointKeys(Keys):
    """Snapshots during training, from which `satrap train --resume` continues."""

    url: str | None = of(Checkpointing, "url", None)
    every_steps: Positive | None = of(Checkpointing, "every_steps")
    delta_every_steps: Positive | None = of(Checkpointing, "delta_every_steps")
    keep: Positive | None = of(Checkpointing, "keep", None)
    durability: Literal["snapshot", "journal"] = "snapshot"
    """The state from which a killed shard recovers. snapshot: the newest snapshot; journal: every update."""


class PublishKeys(Keys):
    """A feed of weights-only versions, published during training for `satrap serve --follow`."""

    every: Seconds | None = of(Publishing, "every", None)
    url: str | None = of(Publishing, "url", None)
    full_every: Positive = of(Publishing, "full_every")
    dtype: Literal["float32", "float16"] = of(Publishing, "dtype")
    keep: Positive = of(Publishing, "keep")

    @property
    def active(self) -> bool:
        """Whether versions are published."""
        return self.every is not None or self.url is not None


class TuneKeys(Keys):
    """Settings that `satrap tune` tries; no effect on training."""

    search: dict[str, list[Any]] = Field(default_factory=dict)
    """Key of the recipe -> values to try, in this order, for example `dense.optimizer.lr: [0.001, 0.003]`.
    `features.*.dim` is the width of all categorical features. An empty list keeps the key's value."""
    usual: bool = True
    """Also try the most influential settings: learning rates, decay, widths, initial scale, dropout, batch
    size."""


class AboutKeys(Keys):
    """Origin of the data and expected results; no effect on training."""

    title: str | None = None
    """Title, one line."""
    licence: str | None = None
    """Licence of the data."""
    attribution: str | None = None
    """Whom to credit."""
    source: str | None = None
    """Where to get the data."""
    md5: dict[str, str] = Field(default_factory=dict)
    """Data file -> md5 digest of the version that the figures below are for."""
    floor: dict[str, float] = Field(default_factory=dict)
    """Metric -> value of a logistic regression on the test rows."""
    baseline: dict[str, float] = Field(default_factory=dict)
    """Metric -> value of LightGBM on the validation rows, by `satrap init --baseline`."""
    published: dict[str, float] = Field(default_factory=dict)
    """Model -> published test AUC; `model/metric`, such as `sasrec/ndcg@10` -> another test metric."""


CategoricalKeys = keys_of(schema.Categorical, "CategoricalKeys", {})
TRANSFORM = """Transform: log1p, log10, sqrt, standardize, minmax, {quantiles: n}, {clip: [low, high]}; or a
list of them."""
MEAN_LABEL = settings(schema.MeanLabel)
NumericKeys = keys_of(
    schema.Numeric,
    "NumericKeys",
    {
        "numeric": literal(True, "Marks the feature as a number."),
        "transform": (Any, Field(None, description=TRANSFORM)),
    },
)
LENGTH = "Marks the feature as a vector, and gives its length, for example 64."
VectorKeys = keys_of(
    schema.Vector, "VectorKeys", {"vector": (Positive, Field(..., description=LENGTH))}, {"dim": "vector"}
)
Feature = Annotated[
    schema.Feature,
    Choice(
        lambda value: "numeric" if value.get("numeric") else "vector" if "vector" in value else "categorical",
        {"categorical": CategoricalKeys, "numeric": NumericKeys, "vector": VectorKeys},
        "numeric",
    ),
]


def as_label(value: object) -> object:
    """Turn a bare name into a label of that name."""
    return {"name": value} if isinstance(value, str) else value


Label = Annotated[schema.Label, settings(schema.Label), BeforeValidator(as_label)]


class Sections(Keys):
    """A recipe: data, targets, model and training."""

    data: DataKeys
    """The data and how it is read."""
    labels: Annotated[list[Label], Field(min_length=1), BeforeValidator(as_list)]
    """Targets: names of 0/1 columns, or mappings, for example `{name: price, kind: regression}`."""
    features: Annotated[dict[str, Feature], Field(min_length=1)]
    """Feature name -> its kind: categorical (`dim: 16`), numeric (`numeric: true`) or vector (`vector:
    64`)."""
    weight: str | None = None
    """Column with a sample weight >= 0."""
    group: str | None = None
    """Column that groups samples for grouped AUC, for example the user."""
    salt: Count = 0
    """Number mixed into the hash of every id."""
    model: Annotated[NamedModel, Choice(lambda _: "model", {"model": Model}, "name")]
    """The network."""
    embedding: EmbeddingKeys = EmbeddingKeys()
    """The embedding tables."""
    tables: dict[str, Annotated[TableSettings, TABLE]] = Field(default_factory=dict)
    """Settings of single tables: name -> settings. A table has the name of its feature, or of the feature's
    `table`."""
    dense: DenseKeys = DenseKeys()
    """The dense network."""
    training: TrainingKeys = TrainingKeys()
    """Schedule, learning rates and stopping."""
    cluster: ClusterKeys = ClusterKeys()
    """Processes and machines."""
    checkpoint: CheckpointKeys = CheckpointKeys()
    """Snapshots during training."""
    publish: PublishKeys = PublishKeys()
    """Versions for serving while the run trains."""
    serving: ServingKeys = ServingKeys()
    """Limits, memory and number format of `satrap serve`."""
    tune: TuneKeys = TuneKeys()
    """Settings that `satrap tune` tries."""
    about: AboutKeys = AboutKeys()
    """Origin of the data and expected results."""

    @property
    def batch_size(self) -> int:
        """Samples per worker and step."""
        return self.data.batch_size // (self.shares if self.data.global_batch else 1)

    @property
    def shares(self) -> int:
        """Number of shares of the data. Workers of the same share train the same batches."""
        return self.cluster.workers // (self.dense.mesh.tensor * self.dense.mesh.pipeline)

    @property
    def holders(self) -> int:
        """Number of processes that hold rows."""
        cluster = self.cluster
        return self.shares if cluster.exchange == "collective" else len(cluster.addresses) or cluster.shards
