"""The queue between the thread that receives requests and the thread that executes them."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Hashable

from satrap.rpc.server.handler import Job


class FairQueue:
    """Requests of a connection in the order received; connections take turns.

    So a busy connection delays the others by one request at a time.

    Attributes:
        jobs, bytes: requests in the queue, and bytes of their payloads. Requests that wait for other clients
            are not among them: otherwise the request they wait for might not be read.
    """

    def __init__(self) -> None:
        self.jobs, self.bytes = 0, 0
        self._jobs: OrderedDict[Hashable, deque[Job]] = OrderedDict()
        self._changed = threading.Condition()
        self._closed = False

    def put(self, job: Job) -> None:
        """Add a request behind the earlier ones of its connection."""
        with self._changed:
            self._jobs.setdefault(job.session.origin, deque()).append(job)
            self.jobs, self.bytes = self.jobs + 1, self.bytes + job.size
            self._changed.notify()

    def get(self, seconds: float) -> Job | None:
        """Take the first request of the connection whose turn it is; None if none comes in time."""
        with self._changed:
            if not self._jobs and not self._closed:
                self._changed.wait(seconds)
            if not self._jobs or self._closed:
                return None
            origin, jobs = self._jobs.popitem(last=False)
            job = jobs.popleft()
            if jobs:
                self._jobs[origin] = jobs
            self.jobs, self.bytes = self.jobs - 1, self.bytes - job.size
            return job

    def close(self) -> None:
        """Let `get` return None from now on, at once."""
        with self._changed:
            self._closed = True
            self._changed.notify()
