"""Writes snapshots in the background, one at a time."""

import threading
from collections.abc import Callable

from satrap.errors import CheckpointError, SatrapError


class Background:
    """Runs one job at a time in a thread and keeps its error until the caller reads it.

    ```python
    writer = Background()
    if not writer.busy:
        writer.start(lambda: series.write(step, cut))
    error = writer.failure()            # of the last job, once; None if it succeeded or is still running
    ```
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: SatrapError | None = None

    @property
    def busy(self) -> bool:
        """Whether a job is running."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, job: Callable[[], object]) -> None:
        """Wait for the previous job, then run this one; in the calling thread if no thread can be started."""
        self.wait()
        thread = threading.Thread(target=self._run, args=(job,), name="satrap-snapshot", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            self._run(job)
        else:
            self._thread = thread

    def _run(self, job: Callable[[], object]) -> None:
        try:
            job()
        except SatrapError as error:
            self._error = error
        except BaseException as error:  # noqa: BLE001 - an error that leaves a thread is lost
            self._error = CheckpointError(
                f"the snapshot could not be written: {type(error).__name__}: {error}",
                why="older snapshots are unchanged",
                fix="training continues and will try to write the next snapshot",
            )
            self._error.__cause__ = error

    def wait(self) -> None:
        """Wait until no job is running."""
        if self._thread is not None:
            self._thread.join()

    def failure(self) -> SatrapError | None:
        """Return the error of the last finished job; the next call returns None."""
        error, self._error = self._error, None
        return error
