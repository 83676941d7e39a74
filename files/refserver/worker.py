"""The one thread that owns the engine; requests wait in a queue, first come, first served."""

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from .engine import Engine
from .errors import RefserverError
from .metrics import Metrics
from .output import Request, Update

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Job:
    """A request on its way; `notify` is called in the worker's thread with each Update."""

    request: Request
    notify: Callable[[Update], None]
    created: float = field(default_factory=time.perf_counter)
    _cancelled: threading.Event = field(default_factory=threading.Event)

    def cancel(self) -> None:
        """Ask for an early end; takes effect between two steps."""
        self._cancelled.set()

    def cancelled(self) -> bool:
        """Whether an early end was asked for."""
        return self._cancelled.is_set()


class Worker:
    """Loads the engine in its thread, then serves jobs until the process ends."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._open: set[Job] = set()
        self._lock = threading.RLock()  # cancel_all may run in a signal handler
        self.engine: Engine | None = None
        self.error: str | None = None

    def start(self, build: Callable[[], Engine], failed: Callable[[], None]) -> None:
        """Start the thread; `failed` is called in it when `build` raises."""

        def run() -> None:
            try:
                self.engine = build()
            except RefserverError as error:
                self.error = str(error)
            except Exception as error:  # else the server would answer 503 for ever
                log.exception("loading failed")
                self.error = f"the model could not be loaded: {error}"
            if self.engine is None:
                failed()
                return
            while True:
                self._serve(self.engine, self._jobs.get())

        threading.Thread(target=run, name="engine", daemon=True).start()

    def submit(self, job: Job) -> None:
        """Queue a job."""
        with self._lock:
            self._open.add(job)
        self._metrics.queued.inc()
        self._jobs.put(job)

    def cancel_all(self) -> None:
        """Cancel what runs and what waits."""
        with self._lock:
            for job in list(self._open):
                job.cancel()

    def _serve(self, engine: Engine, job: Job) -> None:
        self._metrics.queued.dec()
        self._metrics.running.inc()
        watch = self._metrics.watch(job.created)

        def emit(update: Update) -> None:
            watch.step(update)
            job.notify(update)

        try:
            engine.generate(job.request, emit, job.cancelled)
        except Exception as error:  # one request's failure must not end the server
            log.exception("a request failed")
            message = f"the engine failed: {error}"
            job.notify(Update((), "", finish={"type": "abort", "message": message, "status": 500}))
        finally:
            watch.done(len(job.request.prompt))
            self._metrics.running.dec()
            with self._lock:
                self._open.discard(job)
