"""Every key of a recipe, with its type, default and meaning. The text below a key documents it."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, create_model

from satrap import optim, schema
from satrap.config.cluster import Cluster
from satrap.config.data import Data
from satrap.config.derive import STRICT, Choice, Keys, as_list, keys_of, literal
from satrap.config.serving import Serving
from satrap.config.values import Bytes, Count, Device, Positive, Rate, Seconds, Share


class NamedModel(Keys):
    """The network. Further keys are arguments of the model, for example `hidden: [256, 128]`."""

    model_config = ConfigDict({**STRICT, "extra": "allow"})

    name: str | None = None
    """Name of a built-in model, for example deepfm or dcnv2. Either this or `class`."""

    @property
    def own(self) -> str | None:
        """The key `class`, which is no name that Python allows."""
        found: str | None = getattr(self, "class")
        return found


OWN_CLASS = """A class of your own: my_model.py:MyNet, a file relative to the recipe, or package.module:MyNet.
It is called with the schema and the further keys. The run folder keeps a copy of the file."""
Model = create_model(
    "Model",
    __base__=NamedModel,
    __doc__=NamedModel.__doc__,
    **{"class": (str | None, Field(None, description=OWN_CLASS))},  # type: ignore[call-overload]
)


class Admission(Keys):
    """Which new ids get a row."""

    min_count: Annotated[int, Field(ge=1, le=255)] = 1
    """The lookup of an id that creates its row: 1 for the first, 3 for the third."""
    probability: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Chance that a lookup, from the `min_count`-th on, creates the row."""
    memory: Bytes = 1 << 24
    """Memory for counting lookups in each table group, a power of two; used if `min_count` > 1."""


class Eviction(Keys):
    """Which rows leave memory when it is full."""

    policy: Literal["lru", "lfu", "ttl"] = "lru"
    """lru: those used longest ago; lfu: least often; ttl: not for `ttl` steps, and as lru when full."""
    ttl: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    """For policy ttl: steps without a lookup after which a row is removed; over servers, the steps of all
    workers add up."""


EMBEDDING_OPTIMIZERS: dict[str, type[Keys]] = {
    kind.name: keys_of(kind, f"{kind.__name__}Keys", {"name": literal(kind.name, "Name of the optimizer.")})
    for kind in optim.KINDS
}


class Tier(Keys):
    """A file for evicted rows; they come back when they are looked up."""

    path: str = Field(min_length=1)
    """Folder on a fast disk of the machine that holds the rows."""
    size: Bytes
    """Largest size on disk, for example 100GiB, divided among shard servers. Its index takes 19 bytes of
    `embedding.memory` for each row that fits."""


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


class Embedding(Keys):
    """The embedding tables."""

    optimizer: Annotated[Keys, Choice(_name, EMBEDDING_OPTIMIZERS, "name")] = EMBEDDING_OPTIMIZERS[
        optim.EMBEDDING_DEFAULT.name
    ].model_validate({"name": optim.EMBEDDING_DEFAULT.name, "lr": optim.EMBEDDING_DEFAULT.lr})
    """How rows learn."""
    initial_scale: Share = 0.01
    """New rows are drawn uniformly from (-initial_scale, initial_scale)."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Number format of the weights."""
    memory: Bytes | None = None
    """Memory for all tables together, for example 4GiB; default no limit but those of single tables."""
    admission: Admission = Admission()
    """Which new ids get a row."""
    eviction: Eviction | None = None
    """Which rows leave memory when it is full; default none: a new id then ends the run."""
    tier: Tier | None = None
    """A file on disk for evicted rows; default none: they are lost."""


class OwnTable(Keys):
    """What differs in one table from `embedding`."""

    optimizer: Annotated[Keys | None, Choice(_name, EMBEDDING_OPTIMIZERS, "name")] = None
    """How its rows learn."""
    initial_scale: Share | None = None
    """New rows are drawn uniformly from (-initial_scale, initial_scale)."""
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """Number format of its weights."""
    rows: str | None = None
    """File of the rows that it starts with, relative to the recipe, for example pretrained vectors: Parquet
    with columns id and weights (lists), or NumPy's .npz with arrays id and weights; ids as in the data."""
    frozen: bool = False
    """Whether it has the rows of this file and no others, and they never change; other ids read zeros."""
    memory: Bytes | None = None
    """Its own part of `embedding.memory`, for example 1GiB; default: it shares what such tables leave."""
    admission: Admission | None = None
    """Which of its new ids get a row, in place of all of `embedding.admission`; null: all."""
    eviction: Eviction | None = None
    """Which of its rows leave memory when its part is full, in place of `embedding.eviction`; null: none."""


class Mesh(Keys):
    """Number of devices in each dimension in which the dense network is divided."""

    data: Positive | None = None
    """Shares of the data, each trained by a copy of the network; default: the workers divided by the rest."""
    tensor: Positive = 1
    """Workers that divide the linear layers of a copy among themselves."""
    pipeline: Positive = 1
    """Workers of a copy that compute one after another: each has some of the layers, called a stage."""


class Offload(Keys):
    """Where the optimizer of the dense network is, and its weights, if not on the device."""

    optimizer: Literal["cpu", "disk"]
    """cpu: its state is in host memory, for devices with too little of their own. disk: its state is in files
    of `folder`, mapped into memory. With both, the CPU takes its steps."""
    folder: str | None = None
    """With `optimizer: disk`: folder on a fast disk of each worker's machine."""
    weights: bool = False
    """Whether weights and gradients are there, too. On another device than the cpu, each layer's weights come
    for its passes; this is for one worker, `precision: float32` and no `checkpoint_activations`. Not with
    `compile`, nor where workers divide the network."""


class Dense(Keys):
    """The dense network."""

    optimizer: Annotated[Keys, Choice(_name, DENSE_OPTIMIZERS, "name")] = TorchAdam(
        name="adam", lr=optim.DENSE_LR
    )
    """How its weights learn."""
    mesh: Mesh = Mesh()
    """How it is spread over the workers, which are as many as the product of its numbers."""
    sharded: bool | Literal["gradients", "optimizer"] = False
    """What the data-parallel copies divide among themselves. true: weights, gradients and optimizer state
    (ZeRO-3); gradients: gradients and optimizer state (ZeRO-2), with whole weights while a step computes;
    optimizer: its state (ZeRO-1), with whole gradients, too, which are sent once for all `microbatches`. With
    `mesh.pipeline`, all three are as `optimizer`. Between the steps, weights are in shards."""
    shard_size: Positive | None = None
    """With `sharded`: divide among so many neighbouring copies, and in the others again; default all."""
    microbatches: Positive | None = None
    """Parts of each batch that the network computes one after another, for one step with the gradient of all:
    the activations of one part at a time are in memory; default 1. With `mesh.pipeline`, parts that pass the
    stages one behind another, default four times `mesh.pipeline`; with P workers in a pipeline, they idle for
    (P - 1) / (`stages_per_rank` * microbatches + P - 1) of a step. Not with batch normalisation."""
    schedule: Literal["gpipe", "1f1b", "interleaved_1f1b", "looped_bfs"] = "1f1b"
    """With `mesh.pipeline`: whether a stage computes backward passes as early as it can, which takes less
    memory (1f1b, with at least as many `microbatches` as stages), or after all forward passes (gpipe).
    interleaved_1f1b and looped_bfs: the same two with several stages in each worker, which idle less, send
    more and keep more in memory. interleaved_1f1b computes `microbatches` in rounds of equal size, so use a
    multiple of `mesh.pipeline`."""
    stages: list[str] = Field(default_factory=list)
    """With `mesh.pipeline`: names of the modules with which the second and all later stages begin; default:
    the stage with most operations, counted on a batch that stands for nothing, has as few as can be."""
    stages_per_rank: Positive | None = None
    """With interleaved_1f1b and looped_bfs: how many stages each worker has, every P-th of them; default: as
    many as `stages` has names for, else 2."""
    layout: dict[str, Literal["column", "row", "alone", "experts"]] = Field(default_factory=dict)
    """With `mesh.tensor`: how linear layers are divided, by name, as in `{"blocks.*.up": column,
    "blocks.*.down": row}`: column (outputs, which stay divided), row (inputs, which a column before has
    divided), alone (whole inputs and outputs); or experts (each worker has some of them). Default: as the
    model says, else pairs of its stacks, and experts."""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """Number format of its arithmetic. bfloat16: factors of products have 16 bits, which pays on processors
    with AVX-512 BF16 or AMX and on GPUs; weights, gradients, loss and embedding rows stay float32. float16:
    the same in a smaller range, with a scaled loss; for GPUs without bfloat16, slow on most processors."""
    checkpoint_activations: bool = False
    """Whether blocks of the network keep only their input, and compute the rest again in the backward pass:
    the same result to the bit, less memory, about a third more arithmetic. Not with batch normalisation.
    Of a pipeline, stages do so with segments of their layers, about the root of n of n layers each."""
    offload: Offload | None = None
    """Where its optimizer is, for example `{optimizer: disk, folder: /ssd}`; default: on the device. Slower;
    equal to the bit on the device cpu, and up to rounding on another."""
    compile: bool = False
    """Whether blocks of the network are translated into machine code (torch.compile), which takes up to
    minutes at the start and needs a C++ compiler, or on a CUDA device Triton. Equal up to rounding. Not with
    `checkpoint_activations`, nor where workers divide the network."""


class Training(Keys):
    """The schedule and when to stop."""

    mode: Literal["sync", "hybrid", "async"] = "hybrid"
    """sync: lookups see all updates; hybrid: they run `staleness` steps ahead; async: as hybrid, and workers
    do not wait for each other: the network's weights are rows, too."""
    staleness: Count = 4
    """How many of its own latest updates a worker's lookup does not see; sync: always 0."""
    staleness_warmup: Count | None = None
    """Steps over which staleness grows from 0 to its value; null: 20 for each."""
    lookahead: Count = 0
    """In mode sync: how many steps ahead rows are fetched. What the steps in between change is patched, so
    results stay the same; for one worker or the exchange collective, without eviction and admission."""
    epochs: Positive = 1
    """Passes over the training rows."""
    follow: bool = False
    """With `data.stream`: at the end of the log, wait for more events; Ctrl-C or SIGTERM ends the run."""
    steps: Positive | None = None
    """Stop after this many steps; default by epochs alone."""
    seed: Count = 1
    """Seed of all random choices."""
    clip_norm: Rate | None = None
    """Largest norm of the gradient over all parameters and rows; default no limit."""
    loss: str | None = None
    """A function of your own, my_loss.py:my_loss or package.module:my_loss: (logits, batch) -> mean loss of
    the samples; default binary cross-entropy."""
    metrics: list[str] = Field(default_factory=list)
    """Functions of your own, my_metrics.py:my_metric or package.module:my_metric: (labels, predictions) ->
    number, over all samples of an evaluation; see satrap.metrics.OwnMetrics."""
    lr_schedule: Annotated[Keys, Choice(_name, SCHEDULES, "name")] = SCHEDULES["constant"].model_validate(
        {"name": "constant"}
    )
    """Factor on all learning rates, by step."""
    plateau: Annotated[float, Field(gt=0, lt=1)] | None = 0.1
    """Multiply all learning rates by this when an evaluation does not improve the validation metric, see
    `monitor`."""
    patience: Positive | None = 2
    """Stop after so many evaluations in a row without a better validation metric, see `monitor`, and keep the
    best weights."""
    monitor: str = "auc"
    """The validation metric that decides `plateau` and `patience`: auc, logloss or one of `metrics`. logloss
    is steadier than auc where one class is rare; unless all labels are binary, the loss takes their place."""
    threads: Positive | None = None
    """PyTorch's threads inside an operation; default all cores."""
    device: Device = "cpu"
    """Device of the dense network: cpu, cuda or cuda:N."""


class Checkpoint(Keys):
    """Snapshots during training, from which `satrap train --resume` continues."""

    url: str | None = None
    """Folder (relative to the current one) or URL of snapshots; default `checkpoints` in the run folder."""
    every_steps: Positive | None = None
    """Steps between two snapshots; default: one only when Ctrl-C or SIGTERM stops the run."""
    delta_every_steps: Positive | None = None
    """Steps between two deltas, which hold what changed since the snapshot before; default: no deltas."""
    keep: Positive | None = None
    """How many full snapshots to keep, each with the deltas after it; default 2."""
    durability: Literal["snapshot", "journal"] = "snapshot"
    """What survives the death of a shard. snapshot: the newest snapshot; journal: every update."""


class Publish(Keys):
    """A feed: versions of rows and network while the run trains, for `satrap serve --follow`. Each has
    weights only."""

    every: Seconds | None = None
    """Time between two versions, for example 5s; default: 5s if there is a url, else none are published."""
    url: str | None = None
    """Folder (relative to the current one) or URL of the feed; default `feed` in the run folder. No other run
    may publish there."""
    full_every: Positive = 100
    """Versions from one with all rows to the next; the others hold what changed since the one before."""
    dtype: Literal["float32", "float16"] = "float32"
    """Number format of rows."""
    keep: Positive = 2
    """How many versions with all rows to keep, each with those after it."""

    @property
    def active(self) -> bool:
        """Whether versions are published."""
        return self.every is not None or self.url is not None


class Tune(Keys):
    """What `satrap tune` tries; has no effect on training."""

    search: dict[str, list[Any]] = Field(default_factory=dict)
    """Key of the recipe -> values to try, in their order, for example `dense.optimizer.lr: [0.001, 0.003]`;
    `features.*.dim` is the width of all ids together. An empty list leaves the key as it is."""
    usual: bool = True
    """Also try what most often matters: rates, decay, widths, initial scale, dropout, samples per step."""


class About(Keys):
    """Where the data comes from and what to expect; has no effect on training."""

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
    """Model -> test AUC that others report."""


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
                description="log1p, log10, sqrt, standardize, minmax, {quantiles: n}, "
                "{clip: [low, high]}; or a list.",
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
            Field(..., description="Marks the feature as a vector of so many numbers, for example 64."),
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
    """Let a bare name stand for a label of that name."""
    return {"name": value} if isinstance(value, str) else value


Label = Annotated[Keys, Choice(lambda _: "label", {"label": LabelKeys}, "name"), BeforeValidator(as_label)]


class Sections(Keys):
    """A recipe: data, what to learn from it, and how."""

    data: Data
    """Where the rows come from and how they are read."""
    labels: Annotated[list[Label], Field(min_length=1), BeforeValidator(as_list)]
    """Targets: names of 0/1 columns, or mappings, for example `{name: price, kind: regression}`."""
    features: Annotated[dict[str, Feature], Field(min_length=1)]
    """Feature name -> what it is: categorical (`dim: 16`), a number (`numeric: true`) or `vector: 64`."""
    weight: str | None = None
    """Column with a sample weight >= 0."""
    group: str | None = None
    """Column that groups samples for grouped AUC, for example the user."""
    salt: Count = 0
    """Mixed into the hash of every id."""
    model: Annotated[NamedModel, Choice(lambda _: "model", {"model": Model}, "name")]
    """The network."""
    embedding: Embedding = Embedding()
    """The embedding tables."""
    tables: dict[str, OwnTable] = Field(default_factory=dict)
    """Tables that differ: name -> what differs. A table has the name of its feature, or of the feature's
    `table`."""
    dense: Dense = Dense()
    """The dense network."""
    training: Training = Training()
    """The schedule and when to stop."""
    cluster: Cluster = Cluster()
    """Processes and machines."""
    checkpoint: Checkpoint = Checkpoint()
    """Snapshots during training."""
    publish: Publish = Publish()
    """Versions for those who score while the run trains."""
    serving: Serving = Serving()
    """Limits of `satrap serve`."""
    tune: Tune = Tune()
    """What `satrap tune` tries."""
    about: About = About()
    """Where the data comes from and what to expect."""

    @property
    def batch_size(self) -> int:
        """Samples of one worker in a step."""
        return self.data.batch_size // (self.shares if self.data.global_batch else 1)

    @property
    def shares(self) -> int:
        """Number of shares of the data; the workers of a share train the same batches."""
        return self.cluster.workers // (self.dense.mesh.tensor * self.dense.mesh.pipeline)

    @property
    def holders(self) -> int:
        """Number of processes that hold rows."""
        cluster = self.cluster
        return self.shares if cluster.exchange == "collective" else len(cluster.addresses) or cluster.shards
