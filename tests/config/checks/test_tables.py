from pathlib import Path

import pytest

from satrap.config.checks.tables import kept, memory_of
from satrap.embedding import tables_of
from satrap.launch.build import store_of
from satrap.store import Eviction
from tests.config.recipes import TEXT, loaded, refused

FROZEN = TEXT + "tables:\n  user: {frozen: true, rows: users.npz}\n"


@pytest.mark.parametrize(("key", "value"), [("optimizer", "{name: sgd, lr: 1}"), ("initial_scale", "0.1")])
def test_a_frozen_table_has_nothing_that_changes_rows(key: str, value: str, tmp_path: Path) -> None:
    error = refused(tmp_path, f"tables.user.{key}={value}", text=FROZEN)
    assert error.what == f"{key} cannot be combined with frozen: true"
    assert error.where == f"--set tables.user.{key}"


def test_a_frozen_table_needs_rows(tmp_path: Path) -> None:
    error = refused(tmp_path, "tables.user.rows=", text=FROZEN)
    assert error.what == "tables.user is frozen, but has no file of rows"
    assert "recipe.yaml:14" in error.where


def test_files_of_rows_are_relative_to_the_recipe(tmp_path: Path) -> None:
    recipe = loaded(tmp_path, text=FROZEN)
    assert recipe.resolved()["tables"]["user"]["rows"] == str(tmp_path / "users.npz")
    assert recipe.locate("users.npz") == str(tmp_path / "users.npz")


def test_settings_of_a_table_replace_those_of_all(tmp_path: Path) -> None:
    text = TEXT + (
        "embedding: {memory: 4MiB, eviction: {policy: lru}, admission: {min_count: 3}}\n"
        "tables:\n"
        "  user: {memory: 1MiB, eviction: null}\n"
        "  genres: {admission: null, eviction: {policy: lfu}}\n"
    )
    recipe = loaded(tmp_path, text=text)
    found = kept(recipe.sections)
    assert (found["user"].memory, found["user"].eviction) == (1 << 20, None)
    assert found["user"].decided_by == [("embedding", "admission")]
    assert found["genres"].decided_by == [("tables", "genres", "eviction")]
    assert recipe.resolved()["tables"] == {
        "user": {"memory": 1 << 20, "eviction": None},
        "genres": {"admission": None, "eviction": {"policy": "lfu"}},
    }
    store = store_of(recipe)
    users, genres = tables_of(recipe.schema(), recipe.sections.embedding.optimizer, store=store)
    assert (users.memory, users.eviction, users.admission) == (1 << 20, None, "store")
    assert (genres.memory, genres.eviction, genres.admission) == (None, Eviction("lfu"), None)
    assert store.bounds([users, genres]) == {"user": "admission", "genres": "eviction"}


@pytest.mark.parametrize(
    ("embedding", "tables", "what", "where"),
    [
        (
            "{memory: 4MiB}",
            "{user: {memory: 3MiB}, genres: {memory: 2MiB}}",
            "tables.user.memory + tables.genres.memory is 5242880 bytes: more than embedding.memory, 4194304",
            "tables.user.memory",
        ),
        (
            "{memory: 4MiB}",
            "{user: {memory: 4MiB}}",
            "tables.user.memory is 4194304 bytes: all of embedding.memory, 4194304",
            "tables.user.memory",
        ),
        (
            "{}",
            "{user: {eviction: {policy: lru}}}",
            "tables.user.eviction with policy lru needs tables.user.memory",
            "tables.user.eviction",
        ),
        (
            "{eviction: {policy: lfu}}",
            "{user: {memory: 4MiB}}",
            "embedding.eviction with policy lfu needs embedding.memory",
            "embedding.eviction",
        ),
        (
            "{}",
            "{user: {eviction: {ttl: 5}}}",
            "tables.user.eviction: policy lru has no ttl",
            "tables.user.eviction",
        ),
        (
            "{memory: 4MiB, tier: {path: /tmp, size: 1MiB}, eviction: {policy: lru}}",
            "{user: {eviction: {policy: ttl, ttl: 5}}}",
            "embedding.tier needs embedding.memory and an eviction policy of lru or lfu: "
            "table user has tables.user.eviction: ttl",
            "embedding.tier",
        ),
        (
            "{memory: 4MiB, tier: {path: /tmp, size: 1MiB}, eviction: {policy: lru}}",
            "{user: {eviction: null}, genres: {eviction: null}}",
            "embedding.tier needs embedding.memory and an eviction policy of lru or lfu: "
            "no table evicts rows",
            "embedding.tier",
        ),
    ],
)
def test_settings_of_tables_that_do_not_go_together(
    embedding: str, tables: str, what: str, where: str, tmp_path: Path
) -> None:
    error = refused(tmp_path, text=f"{TEXT}embedding: {embedding}\ntables: {tables}\n")
    assert error.what == what
    assert f"key {where}" in error.where


def test_budgets_of_all_tables_may_be_all_of_the_memory(tmp_path: Path) -> None:
    tables = "tables: {user: {memory: 3MiB, eviction: {policy: lru}}, genres: {memory: 1MiB}}\n"
    assert memory_of(loaded(tmp_path, text=TEXT + "embedding: {memory: 4MiB}\n" + tables).sections) == 4 << 20
    assert memory_of(loaded(tmp_path, text=TEXT + tables).sections) == 4 << 20
    assert memory_of(loaded(tmp_path, text=TEXT).sections) is None


def test_a_frozen_table_may_have_a_budget_but_no_admission(tmp_path: Path) -> None:
    loaded(tmp_path, "tables.user.memory=1MiB", "tables.user.eviction=null", text=FROZEN)
    error = refused(tmp_path, "tables.user.admission={min_count: 2}", text=FROZEN)
    assert error.what == "admission cannot be combined with frozen: true"


@pytest.mark.parametrize(("memory", "good"), [("4194303", True), ("4194304", False), ("4194305", False)])
def test_a_table_leaves_memory_to_the_others(memory: str, good: bool, tmp_path: Path) -> None:
    settings = ["embedding.memory=4MiB", f"tables.user.memory={memory}"]
    if good:
        loaded(tmp_path, *settings)
    else:
        said = "all of" if memory == "4194304" else "more than"
        assert f"{said} embedding.memory, 4194304" in refused(tmp_path, *settings).what


def test_a_table_with_a_chance_below_one_is_decided_by_it(tmp_path: Path) -> None:
    for key, decided in (("min_count: 1", False), ("probability: 0.99", True), ("min_count: 2", True)):
        found = kept(loaded(tmp_path, f"tables.user.admission={{{key}}}").sections)["user"]
        assert found.decided_by == ([("tables", "user", "admission")] if decided else [])
