from pathlib import Path

import pytest

from tests.config.recipes import loaded, refused

SYNC = "training.mode=sync"


@pytest.mark.parametrize("key", ["shards", "workers", "loaders", "embedding_workers"])
def test_more_processes_need_shard_servers(tmp_path: Path, key: str) -> None:
    error = refused(tmp_path, f"cluster.{key}=2")
    assert error.what == f"cluster.{key} is 2, but cluster.exchange is local"
    assert error.where == f"--set cluster.{key}"
    assert error.fix == "set cluster.exchange to servers"
    settings = {"cluster.exchange": "servers", "cluster.workers": 2, f"cluster.{key}": 2}
    cluster = loaded(tmp_path, *(f"{k}={v}" for k, v in settings.items())).sections.cluster
    assert getattr(cluster, key) == 2


def test_a_worker_has_at_most_one_embedding_worker_and_then_no_clip_norm(tmp_path: Path) -> None:
    error = refused(tmp_path, "cluster.exchange=servers", "cluster.embedding_workers=2")
    assert error.what == "cluster.embedding_workers is 2, but cluster.workers is 1"
    assert error.where == "--set cluster.embedding_workers"
    for key, value in (("training.clip_norm", 1), ("dense.microbatches", 2)):
        both = ("cluster.embedding_workers=1", f"{key}={value}")
        error = refused(tmp_path, "cluster.exchange=servers", *both)
        assert error.what == f"{key} cannot be combined with cluster.embedding_workers"


def test_a_journal_needs_shard_servers(tmp_path: Path) -> None:
    error = refused(tmp_path, "checkpoint.durability=journal")
    assert error.what == "checkpoint.durability is journal, but cluster.exchange is local"
    sections = loaded(tmp_path, "checkpoint.durability=journal", "cluster.exchange=servers").sections
    assert sections.checkpoint.durability == "journal"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("cluster.shards", "2"),
        ("cluster.embedding_workers", "1"),
        ("training.mode", "async"),
        ("checkpoint.durability", "journal"),
    ],
)
def test_workers_that_hold_the_rows_need_no_servers_and_step_together(
    tmp_path: Path, key: str, value: str
) -> None:
    error = refused(tmp_path, "cluster.exchange=collective", "cluster.workers=2", f"{key}={value}")
    assert error.what == f"{key} cannot be combined with cluster.exchange: collective"
    assert error.where == f"--set {key}"
    sections = loaded(tmp_path, "cluster.exchange=collective", "cluster.workers=3").sections
    assert (sections.cluster.servers, sections.holders) == (0, 3)
    sections = loaded(tmp_path, "cluster.exchange=servers", "cluster.shards=2").sections
    assert (sections.cluster.servers, sections.holders) == (2, 2)


NUMBERS = """\
data: {train: rows.csv}
labels: [clicked]
features: {price: {numeric: true}, text: {vector: 3}}
model: {name: dnn}
"""


@pytest.mark.parametrize(
    ("key", "others"),
    [
        ("cluster.exchange=servers", []),
        ("cluster.shards=2", []),
        ("cluster.addresses=[127.0.0.1:5]", []),
        ("checkpoint.durability=journal", []),
        ("cluster.embedding_workers=1", []),
        ("cluster.embedding_workers=1", ["training.mode=async", "cluster.exchange=servers"]),
    ],
)
def test_numbers_alone_need_no_shards(tmp_path: Path, key: str, others: list[str]) -> None:
    error = refused(tmp_path, key, *others, text=NUMBERS)
    name = key.partition("=")[0]
    assert error.what == f"{name} cannot be combined with a recipe without categorical features"
    assert (error.where, error.fix.partition(";")[0]) == (f"--set {name}", "remove the key")


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_several_workers_on_numbers_alone(tmp_path: Path, mode: str) -> None:
    """What an error advises is taken."""
    chosen = (f"training.mode={mode}", "cluster.workers=2")
    error = refused(tmp_path, *chosen, text=NUMBERS)
    exchange = "collective" if mode == "sync" else "servers"
    assert error.fix == f"set cluster.exchange to {exchange}"
    assert loaded(tmp_path, *chosen, f"cluster.exchange={exchange}", text=NUMBERS).sections.shares == 2


HELD = ["cluster.exchange=collective", "cluster.workers=2"]
EVICTS = "embedding.eviction={policy: ttl, ttl: 9}"
HOT, ALL = "{user: replicated}", "{user: replicated, genres: replicated}"


@pytest.mark.parametrize(
    ("key", "value", "others", "with_"),
    [
        ("placement", "table_wise", [], "cluster.exchange: local"),
        ("placement", "replicated", ["cluster.exchange=servers"], "cluster.exchange: servers"),
        ("placements", "{user: table_wise}", ["cluster.exchange=servers"], "cluster.exchange: servers"),
        ("placements", HOT, ["cluster.exchange=servers", EVICTS], "embedding.eviction"),
        ("placements", HOT, ["cluster.exchange=servers", "training.mode=async"], "training.mode: async"),
        (
            "placements",
            HOT,
            ["cluster.exchange=servers", "cluster.embedding_workers=1"],
            "cluster.embedding_workers",
        ),
        ("placement", "replicated", [*HELD, "embedding.admission={min_count: 2}"], "embedding.admission"),
        ("placement", "replicated", [*HELD, "embedding.admission={probability: 0.5}"], "embedding.admission"),
        (
            "placements",
            "{user: table_wise}",
            [*HELD, EVICTS],
            "embedding.eviction",
        ),
        ("placements", HOT, [*HELD, "tables.user.eviction={policy: ttl, ttl: 9}"], "tables.user.eviction"),
        ("placement", "table_wise", [*HELD, "tables.user.admission={min_count: 2}"], "tables.user.admission"),
        ("placements", HOT, ["cluster.exchange=servers", "tables.user.memory=1GiB"], "tables.user.memory"),
    ],
)
def test_placements_go_with_workers_that_hold_the_rows_and_rows_that_stay(
    tmp_path: Path, key: str, value: str, others: list[str], with_: str
) -> None:
    error = refused(tmp_path, f"cluster.{key}={value}", *others)
    assert (error.what, error.where) == (
        f"cluster.{key} cannot be combined with {with_}",
        f"--set cluster.{key}",
    )


def test_tables_are_placed_by_name(tmp_path: Path) -> None:
    error = refused(tmp_path, *HELD, "cluster.placements={usr: replicated}")
    assert error.what == "cluster.placements names the unknown table 'usr'"
    assert error.fix.startswith("tables: ")
    assert "user" in error.fix
    cluster = loaded(tmp_path, *HELD, "cluster.placements={user: replicated}").sections.cluster
    assert (cluster.placement, cluster.placements) == (None, {"user": "replicated"})
    loaded(tmp_path, "cluster.exchange=servers", f"cluster.placements={ALL}")
    loaded(tmp_path, "cluster.placements={user: row_wise}")  # as it is anyway
    loaded(tmp_path, *HELD, "cluster.placement=auto", EVICTS)  # auto heeds it
    assert refused(tmp_path, "cluster.placement=auto").what.endswith("cluster.exchange: local")
    loaded(tmp_path, *HELD, f"cluster.placements={HOT}", EVICTS, "tables.user.eviction=null")
    loaded(tmp_path, *HELD, f"cluster.placements={HOT}", "tables.genres.memory=1GiB")
    mixed = ["cluster.placement=auto", "cluster.placements={user: replicated}", EVICTS]
    assert (
        refused(tmp_path, *HELD, *mixed).what
        == "cluster.placements cannot be combined with embedding.eviction"
    )


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("training.mode", ["training.mode=hybrid"]),
        ("cluster.workers", [SYNC, "cluster.exchange=servers", "cluster.workers=2"]),
        ("cluster.embedding_workers", [SYNC, "cluster.exchange=servers", "cluster.embedding_workers=1"]),
        ("embedding.admission", [SYNC, "embedding.admission={min_count: 2}"]),
        ("embedding.admission", [SYNC, "embedding.admission={probability: 0.5}"]),
        ("embedding.eviction", [SYNC, "embedding.memory=1GiB", "embedding.eviction={policy: lru}"]),
        ("tables.user.eviction", [SYNC, "tables.user={memory: 1GiB, eviction: {policy: lru}}"]),
        ("tables.user.admission", [SYNC, "tables.user.admission={min_count: 2}"]),
    ],
)
def test_lookahead_is_refused_where_it_could_not_be_exact(
    key: str, values: list[str], tmp_path: Path
) -> None:
    error = refused(tmp_path, "training.lookahead=2", *values)
    assert error.what == f"{key} cannot be combined with training.lookahead"
    assert loaded(tmp_path, "training.lookahead=2", SYNC).sections.training.lookahead == 2


def test_short_gradients_of_the_network_need_the_cpu(tmp_path: Path) -> None:
    for device in ("cuda", "cuda:1"):
        error = refused(tmp_path, f"training.device={device}", "cluster.wire.dense=int8")
        assert error.what == f"cluster.wire.dense: int8 cannot be combined with training.device: {device}"
        assert error.where == "--set cluster.wire.dense"
    for dense in ("float32", "powersgd"):
        loaded(tmp_path, "training.device=cuda", f"cluster.wire.dense={dense}")


def test_a_rank_needs_matrices(tmp_path: Path) -> None:
    loaded(tmp_path, "cluster.wire={dense: powersgd, dense_rank: 2}")
    error = refused(tmp_path, "cluster.wire={dense: int8, dense_rank: 2}")
    assert error.what == "cluster.wire.dense_rank has no effect without cluster.wire.dense: powersgd"


def test_an_unknown_format_is_refused_with_those_there_are(tmp_path: Path) -> None:
    error = refused(tmp_path, "cluster.wire={dense: int4}")
    assert error.what == (
        "cluster.wire.dense must be 'int8', 'bfloat16', 'float16', 'float32' or 'powersgd', got 'int4'"
    )
    assert error.where == "--set cluster.wire"


@pytest.mark.parametrize(
    ("settings", "what", "why"),
    [
        (
            ["cluster.exchange=local"],
            "cluster.exchange cannot be combined with cluster.addresses",
            "shard servers",
        ),
        (
            ["cluster.shards=3"],
            "cluster.shards cannot be combined with cluster.addresses",
            "there are 2 addresses",
        ),
        (["checkpoint.durability=journal"], "checkpoint.durability cannot be combined", "their own journals"),
        (
            ["cluster.addresses=[a:1, a:1]"],
            "cluster.addresses cannot be combined",
            "an address is given twice",
        ),
    ],
)
def test_shards_that_run_already_are_all_there_are(
    tmp_path: Path, settings: list[str], what: str, why: str
) -> None:
    there = ["cluster.exchange=servers", "cluster.addresses=[a:1, b:2]"]
    keys = [one.partition("=")[0] for one in settings]
    error = refused(tmp_path, *[one for one in there if one.partition("=")[0] not in keys], *settings)
    assert error.what.startswith(what)
    assert why in error.why
    sections = loaded(tmp_path, *there, "cluster.shards=2").sections
    assert (sections.holders, sections.cluster.servers) == (2, 0)


def test_an_address_has_a_port(tmp_path: Path) -> None:
    error = refused(tmp_path, "cluster.exchange=servers", "cluster.addresses=[somewhere]")
    assert "cluster.addresses" in error.what


def test_what_only_ray_needs_is_refused_without_it(tmp_path: Path) -> None:
    servers = "cluster.exchange=servers"
    for setting in ("address=10.0.0.1:6379", "wait=5", "resources.shard.memory=1GiB"):
        key = setting.partition("=")[0].partition(".")[0]
        error = refused(tmp_path, servers, f"cluster.{setting}")
        assert error.what == f"cluster.{key} needs cluster.launcher: ray"
        cluster = loaded(tmp_path, servers, "cluster.launcher=ray", f"cluster.{setting}").sections.cluster
        assert getattr(cluster, key)


def test_one_process_needs_no_ray(tmp_path: Path) -> None:
    error = refused(tmp_path, "cluster.launcher=ray")
    assert error.what == "cluster.launcher is ray, but cluster.exchange is local"
    assert error.where == "--set cluster.launcher"
    assert "cluster.launcher" in refused(tmp_path, "cluster.launcher=kubernetes").what
    for address in ("here", "ray://10.0.0.1:10001"):
        assert "cluster.address" in refused(tmp_path, f"cluster.address={address}").what


SERVERS = "cluster.exchange=servers"


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        (
            ["{optimizer: disk, folder: /ssd}", "training.mode=async"],
            " cannot be combined with training.mode: async",
        ),
        (["{optimizer: cpu}"], ".optimizer: cpu has no effect without training.device: cuda"),
        (["{optimizer: disk}"], ".optimizer: disk needs dense.offload.folder"),
        (
            ["{optimizer: cpu, folder: /ssd}", "training.device=cuda"],
            ".folder has no effect without dense.offload.optimizer: disk",
        ),
    ],
)
def test_an_offload_that_cannot_be(tmp_path: Path, settings: list[str], what: str) -> None:
    first, *others = settings
    error = refused(tmp_path, f"dense.offload={first}", *others)
    assert error.what == f"dense.offload{what}"
    assert error.where == "--set dense.offload"


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        (["dense.mesh.tensor=2", SERVERS], "dense.mesh.tensor"),
        (["dense.mesh.pipeline=2", SERVERS], "dense.mesh.pipeline"),
        (["dense.sharded=true", "cluster.workers=2", SERVERS], "dense.sharded"),
        (["dense.compile=true"], "dense.compile"),
        (["cluster.workers=2", "training.device=cuda", SERVERS], "several workers"),
        (
            ["dense.precision=bfloat16", "training.device=cuda"],
            "dense.precision: bfloat16",
        ),
        (
            ["dense.checkpoint_activations=true", "training.device=cuda"],
            "dense.checkpoint_activations",
        ),
    ],
)
def test_what_does_not_go_with_weights_off_the_device(tmp_path: Path, settings: list[str], what: str) -> None:
    error = refused(tmp_path, "dense.offload={optimizer: disk, folder: /d, weights: true}", *settings)
    assert error.what == f"dense.offload.weights cannot be combined with {what}"
    assert error.where == "--set dense.offload"


def test_what_can_be(tmp_path: Path) -> None:
    assert loaded(tmp_path).sections.dense.offload is None
    loaded(tmp_path, "dense.offload={optimizer: disk, folder: /ssd}")
    loaded(tmp_path, "dense.offload={optimizer: cpu}", "training.device=cuda")
    weights = "dense.offload={optimizer: disk, folder: /ssd, weights: true}"
    loaded(tmp_path, weights, "cluster.workers=2", SERVERS, "dense.precision=bfloat16")
    loaded(tmp_path, weights, "dense.checkpoint_activations=true", "dense.sharded=true")
    loaded(tmp_path, "dense.offload={optimizer: cpu, weights: true}", "training.device=cuda")
