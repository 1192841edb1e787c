"""The file of an application of Ray Serve; that it runs is tested with the replica itself."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from satrap.config import load
from satrap.errors import ConfigError
from satrap.serve.replica import DEPLOYMENT, Arguments
from satrap.tools.deploy import RayServing, ray_serve
from satrap.tools.deploy.sizes import server_bytes
from tests.launch.runs import make_recipe
from tests.tools.deploy.kept import missing


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder, so far as its recipe."""
    folder = tmp_path_factory.mktemp("run")
    make_recipe(folder).rename(folder / "recipe.yaml")
    return folder


def made(run: Path, **asked: Any) -> dict[str, Any]:
    found: dict[str, Any] = YAML(typ="safe", pure=True).load(ray_serve(RayServing(run=str(run), **asked)))
    return found


def with_keys(run: Path, folder: Path, *settings: str) -> Path:
    """Copy the run with other keys."""
    from satrap.config import to_yaml

    (folder / "recipe.yaml").write_text(to_yaml(load(run / "recipe.yaml", settings).resolved()))
    return folder


def test_the_whole_file(run: Path) -> None:
    found = made(run, replicas=3, cpu=1.5, memory=1 << 30, follow=True)
    assert found == {
        "proxy_location": "EveryNode",
        "http_options": {"host": "127.0.0.1", "port": 8000},
        "applications": [
            {
                "name": run.name,
                "route_prefix": "/",
                "import_path": "satrap.serve.replica:application",
                "args": {"run": str(run), "name": run.name, "follow": True},
                "logging_config": {"enable_access_log": False},
                "deployments": [
                    {
                        "name": "satrap",
                        "num_replicas": 3,
                        "max_ongoing_requests": 256,
                        "graceful_shutdown_timeout_s": 30,
                        "ray_actor_options": {"num_cpus": 1.5, "memory": 1 << 30},
                    }
                ],
            }
        ],
    }


def test_it_names_what_exists(run: Path) -> None:
    [application] = made(run, key="serve.key")["applications"]
    module, _, name = application["import_path"].partition(":")
    assert callable(getattr(import_module(module), name))
    assert set(application["args"]) <= set(Arguments.__slots__)
    assert application["deployments"][0]["name"] == DEPLOYMENT


def test_it_follows_if_the_recipe_publishes(run: Path, tmp_path: Path) -> None:
    assert made(run)["applications"][0]["args"]["follow"] is False
    publishing = with_keys(run, tmp_path, "publish.every=5s", "embedding.memory=1GiB", "serving.max_queue=9")
    [application] = made(publishing)["applications"]
    assert application["args"]["follow"] is True
    assert made(publishing, follow=False)["applications"][0]["args"]["follow"] is False
    [deployment] = application["deployments"]
    assert deployment["max_ongoing_requests"] == 9
    memory = server_bytes(load(publishing / "recipe.yaml").sections)
    assert deployment["ray_actor_options"] == {"num_cpus": 2.0, "memory": memory}


def test_others_need_a_key(run: Path) -> None:
    with pytest.raises(ConfigError, match=r"0.0.0.0 can be reached.*\n.*--listen\n.*\n.*--key FILE"):
        made(run, listen="0.0.0.0:80")
    found = made(run, listen="0.0.0.0:80", key="serve.key")
    assert found["http_options"] == {"host": "0.0.0.0", "port": 80}
    assert found["applications"][0]["args"]["key"] == str(Path("serve.key").absolute())


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a run folder"):
        made(tmp_path)


def test_rays_own_schema_takes_it(run: Path) -> None:
    schema = pytest.importorskip("ray.serve.schema", reason="ray[serve] is not installed")
    asked = made(run, key="serve.key")
    kept = schema.ServeDeploySchema.model_validate(asked).model_dump(mode="json", exclude_unset=True)
    assert missing(asked, kept) == []  # it drops what it does not know
    asked["applications"][0]["deployments"][0]["num_replica"] = 1
    kept = schema.ServeDeploySchema.model_validate(asked).model_dump(mode="json", exclude_unset=True)
    assert missing(asked, kept) == [".applications[0].deployments[0].num_replica"]
