"""A program for copies: its first argument says what it does."""

import atexit
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from satrap.launch.launchers import fork_server


def tell() -> None:
    print(json.dumps({
        "argv": sys.argv[1:],
        "folder": os.getcwd(),
        "path": sys.path[0],
        "session": os.getsid(0) == os.getpid(),
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "input": sys.stdin.read(),
        "title": Path("/proc/self/cmdline").read_text().rstrip("\0").split("\0")[1:],
        "files": sorted(map(int, os.listdir("/proc/self/fd")))[:-1],
        "thread": threading.main_thread().native_id == os.getpid(),
    }))  # fmt: skip


def late() -> None:
    threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
    atexit.register(lambda: print("exit"))


match sys.argv[1]:
    case "tell":
        tell()
    case "late":
        late()
    case "raise":
        raise RuntimeError("what went wrong")
    case "interrupt":
        raise KeyboardInterrupt
    case "text":
        sys.exit("a last word")
    case "wait":
        print("here", flush=True)
        time.sleep(300)
    case "server":
        copy = fork_server.ForkServer([]).start("tests.launch.launchers.copied", ["wait"])
        print(copy.pid, flush=True)
        time.sleep(300)
    case code:
        sys.exit(int(code))
