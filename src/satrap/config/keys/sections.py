"""All keys of a recipe, with type, default and meaning. The text below a key documents it."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, create_model

from satrap import optim, schema
from satrap.config.keys.cluster import ClusterKeys
from satrap.config.keys.data import DataKeys
from satrap.config.keys.derive import STRICT, Choice, Keys, as_list, keys_of, literal
from satrap.config.keys.serving import ServingKeys
from satrap.config.keys.values import Bytes, Count, Device, Positive, Rate, Seconds, Share


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


class AdmissionKeys(Keys):
    """Which new ids get a row."""

    min_count: Annotated[int, Field(ge=1, le=255)] = 1
    """Number of the lookup that creates an id's row: 1 for the first, 3 for the third."""
    probability: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Probability that a lookup creates the row, from the `min_count`-th lookup on."""
    memory: Bytes = 1 << 24
    """Memory for counting lookups in each table group, a power of two; used if `min_count` > 1."""


class EvictionKeys(Keys):
    """Which rows leave memory when it is full."""

    policy: Literal["lru", "lfu", "ttl"] = "lru"
    """Rows to evict. lru: the least recently used rows; lfu: the least frequently used rows; ttl: rows not
    used for `ttl` steps, and as lru when memory is full."""
    ttl: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    """For policy ttl: steps without a lookup after which a row is removed. With shard servers, the steps of
    all workers count."""


EMBEDDING_OPTIMIZERS: dict[str, type[Keys]] = {
    kind.name: keys_of(kind, f"{kind.__name__}Keys", {"name": literal(kind.name, "Name of the optimizer.")})
    for kind in optim.KINDS
}


class TierKeys(Keys):
    """A file for evicted rows. A lookup loads them back into memory."""

    path: str = Field(min_length=1)
    """Folder on a fast disk of the machine that holds the rows."""
    size: Bytes
    """Largest size on disk, for example 100GiB, divided among shard servers. The index takes 19 bytes of
    `embedding.memory` per row that fits on the disk."""


class TorchSGD(Keys):
    """`torch.optim.SGD`."""

    name: Literal["sgd"]
    """Name of the optimizer."""
    lr: Rate
    """Learning rate."""
    momentum: Share = 0.0
    """Momentum factor."""
    dampening: float = 0.0
    """Dampening of the momentum."""
    weight_decay: Share = 0.0
    """L2 penalty."""
    nesterov: bool = False
    """Use Nesterov momentum."""


class TorchAdagrad(Keys):
    """`torch.optim.Adagrad`."""

    name: Literal["adagrad"]
    """Name of the optimizer."""
    lr: Rate
    """Learning rate."""
    lr_decay: Share = 0.0
    """Decay of the learning rate per step."""
    weight_decay: Share = 0.0
    """L2 penalty."""
    initial_accumulator_value: Share = 0.0
    """Initial value of the sum of squares."""
    eps: Share = 1e-10
    """Added to the root."""


class TorchAdam(Keys):
    """`torch.optim.Adam`."""

    name: Literal["adam"]
    """Name of the optimizer."""
    lr: Rate
    """Learning rate."""
    betas: Annotated[list[float], Field(min_length=2, max_length=2)] = Field(default=[0.9, 0.999])
    """Decay of the two moments."""
    eps: Share = 1e-8
    """Added to the root."""
    weight_decay: Share = 0.0
    """L2 penalty."""
    amsgrad: bool = False
    """Use the AMSGrad variant."""


class TorchAdamW(TorchAdam):
    """`torch.optim.AdamW`."""

    name: Literal["adamw"]  # type: ignore[assignment]
    """Name of the optimizer."""
    weight_decay: Share = 0.01
    """Decoupled weight decay."""


DENSE_OPTIMIZERS: dict[str, type[Keys]] = {
    "sgd": TorchSGD,
    "adagrad": TorchAdagrad,
    "adam": TorchAdam,
    "adamw": TorchAdamW,
}


SCHEDULES: dict[str, type[Keys]] = {
    kind.name: keys_of(kind, f"{kind.__name__}Keys", {"name": literal(kind.name, "Name of the schedule.")})
    for kind in optim.SCHEDULES
}


def _name(value: Mapping[str, Any]) -> object:
    return value.get("name")


class EmbeddingKeys(Keys):
    """The embedding tables."""

    optimizer: Annotated[Keys, Choice(_name, EMBEDDING_OPTIMIZERS, "name")] = EMBEDDING_OPTIMIZERS[
        optim.EMBEDDING_DEFAULT.name
    ].model_validate({"name": optim.EMBEDDING_DEFAULT.name, "lr": optim.EMBEDDING_DEFAULT.lr})
    """Optimizer of the rows."""
    initial_scale: Share = 0.01
    """New rows are drawn uniformly from (-initial_scale, initial_scale)."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Number format of the weights."""
    memory: Bytes | None = None
    """Memory for all tables together, for example 4GiB. Default: only the limits of single tables."""
    admission: AdmissionKeys = AdmissionKeys()
    """Which new ids get a row."""
    eviction: EvictionKeys | None = None
    """Which rows leave memory when it is full. Default none: a new id then ends the run with an error."""
    tier: TierKeys | None = None
    """A file on disk for evicted rows. Default none: evicted rows are lost."""


class TableKeys(Keys):
    """Settings of one table that override `embedding`."""

    optimizer: Annotated[Keys | None, Choice(_name, EMBEDDING_OPTIMIZERS, "name")] = None
    """Optimizer of the table's rows."""
    initial_scale: Share | None = None
    """New rows are drawn uniformly from (-initial_scale, initial_scale)."""
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """Number format of the table's weights."""
    rows: str | None = None
    """File of initial rows, for example pretrained vectors, relative to the recipe: Parquet with columns id
    and weights (lists), or NumPy's .npz with arrays id and weights. Ids are as in the data."""
    frozen: bool = False
    """Whether the table has only the rows of this file, which never change. Other ids read zeros."""
    memory: Bytes | None = None
    """The table's own part of `embedding.memory`, for example 1GiB. Default: it shares the rest with other
    tables."""
    admission: AdmissionKeys | None = None
    """Which new ids of the table get a row; replaces all of `embedding.admission`. null: all new ids."""
    eviction: EvictionKeys | None = None
    """Which rows leave memory when the table's part is full; replaces `embedding.eviction`. null: none."""


class MeshKeys(Keys):
    """Number of workers in each dimension of parallelism of the dense network."""

    data: Positive | None = None
    """Number of copies of the network, each trained on its share of the data. Default: the number of workers
    divided by `tensor` and `pipeline`."""
    tensor: Positive = 1
    """Number of workers over which the linear layers of a copy are sharded."""
    pipeline: Positive = 1
    """Number of workers that compute the pipeline stages of a copy, one after another. A stage is a group of
    consecutive layers."""


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

    optimizer: Annotated[Keys, Choice(_name, DENSE_OPTIMIZERS, "name")] = TorchAdam(
        name="adam", lr=optim.DENSE_LR
    )
    """Optimizer of the network's weights."""
    mesh: MeshKeys = MeshKeys()
    """How the network is spread over the workers. The number of workers is the product of the dimensions."""
    sharded: bool | Literal["gradients", "optimizer"] = False
    """State that is sharded over the data-parallel copies. true: weights, gradients and optimizer state
    (ZeRO-3); gradients: gradients and optimizer state (ZeRO-2), with whole weights during a step; optimizer:
    optimizer state (ZeRO-1), with whole weights and gradients during a step, and one reduction of gradients
    for all `microbatches`. With `mesh.pipeline`, all three values act as `optimizer`. Between steps, weights
    are always sharded."""
    shard_size: Positive | None = None
    """With `sharded`: size of a shard group. Each group of neighbouring copies holds the whole state.
    Default: all copies."""
    microbatches: Positive | None = None
    """Number of parts into which each batch is cut. The network computes them one after another and takes one
    step with the gradient of all, so only the activations of one part are in memory; default 1. With
    `mesh.pipeline`, the parts move through the stages; default four times `mesh.pipeline`. The P workers of a
    pipeline idle for (P - 1) / (`stages_per_rank` * microbatches + P - 1) of a step. Not with batch
    normalisation."""
    schedule: Literal["gpipe", "1f1b", "interleaved_1f1b", "looped_bfs"] = "1f1b"
    """With `mesh.pipeline`: the pipeline schedule. 1f1b: each stage computes backward passes as early as
    possible, which takes less memory and needs at least as many `microbatches` as stages. gpipe: backward
    passes come after all forward passes. interleaved_1f1b and looped_bfs: the same two with several stages
    per worker. Workers then idle less, but send more and need more memory. interleaved_1f1b computes
    `microbatches` in rounds of equal size, so use a multiple of `mesh.pipeline`."""
    stages: list[str] = Field(default_factory=list)
    """With `mesh.pipeline`: names of the modules at which the second and all later stages begin. Default: the
    cuts that minimize the operations of the largest stage, counted on a dummy batch."""
    stages_per_rank: Positive | None = None
    """With interleaved_1f1b and looped_bfs: number of stages per worker, which has every P-th stage. Default:
    the number that `stages` implies, else 2."""
    layout: dict[str, Literal["column", "row", "alone", "experts"]] = Field(default_factory=dict)
    """With `mesh.tensor`: how linear layers are sharded, by name, as in `{"blocks.*.up": column,
    "blocks.*.down": row}`: column (by outputs, which stay sharded), row (by inputs, which a preceding column
    layer has sharded), alone (whole inputs and outputs), or experts (each worker has some of the experts).
    Default: the model's layout, else pairs of layers in its stacks, and experts."""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """Number format of the network's arithmetic. bfloat16: matrix products take 16-bit inputs, which is
    faster on CPUs with AVX-512 BF16 or AMX and on GPUs; weights, gradients, loss and embedding rows stay
    float32. float16: the same with a smaller range and a scaled loss, for GPUs without bfloat16; slow on most
    CPUs."""
    checkpoint_activations: bool = False
    """Whether blocks of the network keep only their input and recompute the rest in the backward pass:
    bit-identical results, less memory, about a third more arithmetic. Not with batch normalisation. In a
    pipeline, a stage of n layers recomputes segments of about sqrt(n) layers."""
    offload: OffloadKeys | None = None
    """Where the optimizer state is, for example `{optimizer: disk, folder: /ssd}`; default: on the device.
    Slower. Results are bit-identical on the device cpu, and equal up to rounding on a GPU."""
    compile: bool = False
    """Whether to compile blocks of the network with torch.compile. Compilation takes up to minutes at the
    start and needs a C++ compiler, or Triton on a CUDA device. Results are equal up to rounding. Not with
    `checkpoint_activations`, `sharded`, or a mesh with `tensor` or `pipeline`."""


class TrainingKeys(Keys):
    """Schedule, learning rates and stopping."""

    mode: Literal["sync", "hybrid", "async"] = "hybrid"
    """Order of lookups and updates. sync: lookups see all updates; hybrid: lookups run `staleness` steps
    ahead; async: as hybrid, but workers do not wait for each other, and the store also holds the network's
    weights."""
    staleness: Count = 4
    """Number of a worker's own latest updates that its lookups do not see; sync: always 0."""
    staleness_warmup: Count | None = None
    """Steps over which staleness grows from 0 to its value; null: 20 steps per unit of staleness."""
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
    clip_norm: Rate | None = None
    """Maximum norm of the gradient over all parameters and rows; default no limit."""
    loss: str | None = None
    """Your own function, my_loss.py:my_loss or package.module:my_loss: (logits, batch) -> mean loss of the
    samples; default binary cross-entropy."""
    metrics: list[str] = Field(default_factory=list)
    """Your own functions, my_metrics.py:my_metric or package.module:my_metric: (labels, predictions) ->
    number, over all samples of an evaluation; see satrap.metrics.OwnMetrics."""
    lr_schedule: Annotated[Keys, Choice(_name, SCHEDULES, "name")] = SCHEDULES["constant"].model_validate(
        {"name": "constant"}
    )
    """Factor on all learning rates, by step."""
    plateau: Annotated[float, Field(gt=0, lt=1)] | None = 0.1
    """Multiply all learning rates by this factor when an evaluation does not improve the validation metric
    (see `monitor`)."""
    patience: Positive | None = 2
    """Stop after this number of evaluations in a row without a better validation metric (see `monitor`), and
    keep the best weights."""
    monitor: str = "auc"
    """The validation metric that decides `plateau` and `patience`: auc, logloss or one of `metrics`. logloss
    is less noisy than auc if one class is rare. Unless all labels are binary, the loss replaces both."""
    threads: Positive | None = None
    """PyTorch's intra-operation threads; default all cores."""
    device: Device = "cpu"
    """Device of the dense network: cpu, cuda or cuda:N."""


class CheckpointKeys(Keys):
    """Snapshots during training, from which `satrap train --resume` continues."""

    url: str | None = None
    """Folder (relative to the current one) or URL of snapshots; default `checkpoints` in the run folder."""
    every_steps: Positive | None = None
    """Steps between two snapshots; default: one only when Ctrl-C or SIGTERM stops the run."""
    delta_every_steps: Positive | None = None
    """Steps between two deltas. A delta holds the changes since the previous snapshot. Default: no deltas."""
    keep: Positive | None = None
    """Number of full snapshots to keep, each with its deltas; default 2."""
    durability: Literal["snapshot", "journal"] = "snapshot"
    """The state from which a killed shard recovers. snapshot: the newest snapshot; journal: every update."""


class PublishKeys(Keys):
    """A feed of weights-only versions, published during training for `satrap serve --follow`."""

    every: Seconds | None = None
    """Time between two versions, for example 5s. Default: 5s with a url, else nothing is published."""
    url: str | None = None
    """Folder (relative to the current one) or URL of the feed; default `feed` in the run folder. Only one run
    may publish to a feed."""
    full_every: Positive = 100
    """Number of versions from one with all rows to the next. The versions between hold the changes since the
    previous version."""
    dtype: Literal["float32", "float16"] = "float32"
    """Number format of rows."""
    keep: Positive = 2
    """Number of versions with all rows to keep, each with the versions up to the next one."""

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
    published: dict[str, float] = Field(default_factory=dict)
    """Model -> published test AUC."""


CategoricalKeys = keys_of(schema.Categorical, "CategoricalKeys", {})
NumericKeys = keys_of(
    schema.Numeric,
    "NumericKeys",
    {
        "numeric": literal(True, "Marks the feature as a number."),
        "transform": (
            Any,
            Field(
                None,
                description="Transform: log1p, log10, sqrt, standardize, minmax, {quantiles: n}, "
                "{clip: [low, high]}; or a list of them.",
            ),
        ),
    },
)
VectorKeys = keys_of(
    schema.Vector,
    "VectorKeys",
    {
        "vector": (
            Positive,
            Field(..., description="Marks the feature as a vector, and gives its length, for example 64."),
        ),
        "dim": None,
    },
)
LabelKeys = keys_of(schema.Label, "LabelKeys", {})
Feature = Annotated[
    Keys,
    Choice(
        lambda value: "numeric" if value.get("numeric") else "vector" if "vector" in value else "categorical",
        {"categorical": CategoricalKeys, "numeric": NumericKeys, "vector": VectorKeys},
        "numeric",
    ),
]


def as_label(value: object) -> object:
    """Turn a bare name into a label of that name."""
    return {"name": value} if isinstance(value, str) else value


Label = Annotated[Keys, Choice(lambda _: "label", {"label": LabelKeys}, "name"), BeforeValidator(as_label)]


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
    tables: dict[str, TableKeys] = Field(default_factory=dict)
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
