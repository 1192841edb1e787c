"""The pods of manifests as processes of this machine; needs root.

Each pod has a network namespace with an address of its own, and sees of this machine only its files, which
it cannot write. Volumes are mounted where the manifest says, names are those that a headless Service gives.
User, variables and command are the pod's. Images are not: `satrap` is that of this environment.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from numba.core import caching

import satrap
from satrap.store.kernels.jit import CACHE_FOLDER
from tests.cluster.machines import Machines

Object = dict[str, Any]
ROOT = Path(__file__).parents[2]

IMAGE = (sys.base_prefix, sys.prefix, str(Path(satrap.__file__).parents[1]))
"""What an image would have."""


def enter(plan: Object) -> None:
    """Become the process of a pod, in mount and network namespaces of its own."""
    do(f"mount --bind {plan['hosts']} /etc/hosts")
    do("mount -t tmpfs none /srv")
    home = Path.home()  # which others may not enter
    if kept := [path for path in plan["image"] if Path(path).is_relative_to(home)]:
        do("mount -t tmpfs none /mnt")
        for number, path in enumerate(kept):
            Path(f"/mnt/{number}").mkdir()
            do(f"mount --bind {path} /mnt/{number}")
        do(f"mount -t tmpfs -o mode=0755 none {home}")
        for number, path in enumerate(kept):
            Path(path).mkdir(parents=True, exist_ok=True)
            do(f"mount --bind /mnt/{number} {path}")
    for source, path, access in plan["mounts"]:
        Path(path).mkdir(parents=True, exist_ok=True)
        do(f"mount --bind {source} {path}")
        if access == "ro":
            do(f"mount -o remount,bind,ro {path}")
    do("mount -o remount,bind,ro /")
    os.execvp(plan["command"][0], plan["command"])


def do(command: str) -> None:
    subprocess.run(command.split(), check=True)


def machine_code(folder: Path) -> Path:
    """Fill a folder with the machine code of earlier runs of this user, as a pod looks for it there."""
    if CACHE_FOLDER is not None:
        shutil.copytree(CACHE_FOLDER, folder / "satrap" / Path(CACHE_FOLDER).name)
    for made in Path(satrap.__file__).parent.rglob("__pycache__/*.nb?"):
        source = str(made.parents[1] / f"{made.name.split('.')[0]}.py")
        target = folder / caching._CacheLocator.get_suitable_cache_subpath(source)
        target.mkdir(exist_ok=True)
        shutil.copy(made, target)
    do(f"chmod -R a+rwX {folder}")
    return folder


class Pod:
    """One pod, and the process of its container.

    Args:
        name: of the pod.
        spec: as in the manifest.
        start: what its process begins with.
        volumes: name -> folder.
    """

    def __init__(self, name: str, spec: Object, start: list[str], volumes: dict[str, Path]) -> None:
        self.name, self.spec, self._start, self.volumes = name, spec, start, volumes
        (self.container,) = spec["containers"]
        self.log = ""
        self.process: subprocess.Popen[str] | None = None

    def run(self, hosts: Path, output: Path, code: Path) -> subprocess.Popen[str]:
        """Start its process."""
        mounts = [
            (str(self.volumes[one["name"]]), one["mountPath"], "ro" if one.get("readOnly") else "rw")
            for one in self.container["volumeMounts"]
        ]
        given = {one["name"]: one["value"] for one in self.container["env"]}
        mounts.append((str(code), given["NUMBA_CACHE_DIR"], "rw"))
        context = self.spec["securityContext"]
        assert context["runAsNonRoot"]
        assert self.container["securityContext"]["readOnlyRootFilesystem"]
        user = [f"--reuid={context['runAsUser']}", f"--regid={context['runAsGroup']}"]
        user += [f"--groups={context['fsGroup']}", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]
        # What an image has: the program and its libraries, and no more threads than this machine can bear.
        given |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
        given |= {"PYTHONPATH": IMAGE[-1]}
        variables = ["env", "-i", *(f"{key}={value}" for key, value in given.items())]
        plan = {"hosts": str(hosts), "image": IMAGE, "mounts": mounts}
        plan["command"] = ["setpriv", *user, *variables, *self.container["command"]]
        command = [*self._start, "unshare", "-m", sys.executable, "-m", "tests.cluster.pods"]
        command.append(json.dumps(plan))
        with output.open("a") as log:
            self.process = subprocess.Popen(
                command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, text=True
            )
        return self.process

    @property
    def used(self) -> float:
        """The most memory it has used so far, as a part of its limit."""
        assert self.process is not None
        kib = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{self.process.pid}/status").read_text())
        assert kib is not None
        return int(kib[1]) / 1024 / int(self.container["resources"]["limits"]["memory"].removesuffix("Mi"))

    def probe(self, kind: str) -> int:
        """Return the status that a probe gets, 0 without an answer."""
        get = self.container[kind]["httpGet"]
        url = f"http://127.0.0.1:{get['port']}{get['path']}"
        code = f"import tests.cluster.pods as p; print(p.status({url!r}))"
        asked = subprocess.run(
            [*self._start, sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
        )
        return int(asked.stdout)


def status(url: str) -> int:
    """Return the HTTP status of a URL, 0 without an answer."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


class Cluster:
    """All pods of the manifests of a run; use it as a context.

    Args:
        folder: for volumes and logs.
        objects: the manifests.
        claims: volume claims that exist already -> their folders.
        key: file with the cluster's key, which the Secret holds.
        code: folder with machine code that the pods find: compiling takes minutes.
    """

    def __init__(
        self, folder: Path, objects: list[Object], *, claims: dict[str, Path], key: Path, code: Path
    ) -> None:
        self.folder, self._claims, self._key, self._code = folder, claims, key, code
        self._by_kind = {one["kind"]: one for one in objects}
        self._hosts = folder / "hosts"
        self.pods: dict[str, Pod] = {}
        job, shards = self._by_kind["Job"], self._by_kind.get("StatefulSet")
        count = shards["spec"]["replicas"] if shards else 0
        self._machines = Machines(1 + count, "10gbit")
        self._specs = {job["metadata"]["name"]: job["spec"]["template"]["spec"]}
        if shards:
            name, spec = shards["metadata"]["name"], shards["spec"]["template"]["spec"]
            self._specs |= {f"{name}-{number}": spec for number in range(count)}

    def __enter__(self) -> Cluster:
        self._machines.__enter__()
        service = self._by_kind.get("Service", {"metadata": {"name": ""}})["metadata"]["name"]
        lines = ["127.0.0.1 localhost"]
        for number, name in enumerate(self._specs):
            lines.append(f"10.213.0.{number + 1} {name}.{service}")
        self._hosts.write_text("\n".join(lines) + "\n")
        for number, (name, spec) in enumerate(self._specs.items()):
            volumes = {mount["name"]: self._volume(name, mount["name"]) for mount in self._mounts(spec)}
            self.pods[name] = Pod(name, spec, self._machines.command(number), volumes)
            self.start(name)
        return self

    def start(self, name: str) -> None:
        """Start a pod, for the first time or again: what it wrote outside of claims is lost."""
        pod = self.pods[name]
        shutil.rmtree(pod.volumes["scratch"], ignore_errors=True)
        self._folder(pod.volumes["scratch"])
        pod.run(self._hosts, self.folder / f"{name}.log", self._code)

    def log(self, name: str) -> str:
        """Return what a pod has printed."""
        return (self.folder / f"{name}.log").read_text()

    def __exit__(self, *_: object) -> None:
        for pod in self.pods.values():
            if pod.process is not None:
                pod.process.kill()
                pod.process.wait()
        self._machines.__exit__()

    @staticmethod
    def _mounts(spec: Object) -> list[Object]:
        found: list[Object] = spec["containers"][0]["volumeMounts"]
        return found

    def _volume(self, pod: str, name: str) -> Path:
        (given,) = [one for one in self._specs[pod]["volumes"] if one["name"] == name] or [{}]
        if "configMap" in given:
            return self._config_map(given["configMap"]["name"])
        if "secret" in given:
            return self._secret(given["secret"]["defaultMode"])
        if "persistentVolumeClaim" in given:
            claim = given["persistentVolumeClaim"]["claimName"]
            if claim in self._claims:
                return self._claims[claim]
            assert self._by_kind["PersistentVolumeClaim"]["metadata"]["name"] == claim
            return self._folder(self.folder / claim)
        if not given:
            templates = self._by_kind["StatefulSet"]["spec"]["volumeClaimTemplates"]
            assert name in [one["metadata"]["name"] for one in templates]
        return self._folder(self.folder / f"{name}-{pod}")

    def _folder(self, path: Path) -> Path:
        """Return a folder that the group of the pods may write, as `fsGroup` has it."""
        path.mkdir(exist_ok=True)
        os.chown(path, 0, self._group)
        path.chmod(0o2775)
        return path

    @property
    def _group(self) -> int:
        spec: Object = self._by_kind["Job"]["spec"]["template"]["spec"]
        return int(spec["securityContext"]["fsGroup"])

    def _config_map(self, name: str) -> Path:
        assert self._by_kind["ConfigMap"]["metadata"]["name"] == name
        folder = self.folder / name
        (folder / "..2026").mkdir(parents=True, exist_ok=True)  # links into it, as kubelet makes them
        for file, text in self._by_kind["ConfigMap"]["data"].items():
            (folder / "..2026" / file).write_text(text)
            if not (folder / file).exists():
                (folder / file).symlink_to(f"..2026/{file}")
        return folder

    def _secret(self, mode: int) -> Path:
        folder = self.folder / "secret"
        folder.mkdir(exist_ok=True)
        file = folder / "cluster.key"
        shutil.copy(self._key, file)
        os.chown(file, 0, self._group)
        file.chmod(mode)
        return folder


if __name__ == "__main__":
    enter(json.loads(sys.argv[1]))
