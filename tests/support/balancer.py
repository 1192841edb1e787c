"""HAProxy in front of servers of scores."""

from __future__ import annotations

import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.serve.followed import eventually

HAPROXY = shutil.which("haproxy")

CONFIG = """\
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
  timeout check 10s
  option http-buffer-request
  retries 3
  option redispatch 1
  retry-on conn-failure empty-response
frontend scores
  bind 127.0.0.1:{port}
  default_backend servers
backend servers
  balance roundrobin
  option httpchk GET /ready
  default-server check inter 100ms fall 1 rise 1
"""
"""Scores may be asked for twice, so a request whose server is killed goes to the other one."""


@contextmanager
def balancer(folder: Path, port: int, servers: list[int]) -> Iterator[None]:
    lines = [f"  server s{number} 127.0.0.1:{one}" for number, one in enumerate(servers)]
    (folder / "haproxy.cfg").write_text(CONFIG.format(port=port) + "\n".join(lines) + "\n")
    with (folder / "haproxy.log").open("wb") as log:
        process = subprocess.Popen(
            [str(HAPROXY), "-db", "-f", folder / "haproxy.cfg"], stdout=log, stderr=subprocess.STDOUT
        )
    try:

        def ready() -> bool:
            assert process.poll() is None, (folder / "haproxy.log").read_text()
            return status(port) == 200

        eventually(ready)
        yield
    finally:
        process.terminate()
        process.wait()


def status(port: int) -> int:
    """Return the status of /ready, 0 without an answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0
