"""Prometheus metrics under the names that SGLang uses."""

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from .output import Update

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3, 6, 12, 30, 60, 120)


class Metrics:
    """All series of a server, labelled with its model_name."""

    def __init__(self, model_name: str) -> None:
        self.registry = CollectorRegistry()
        self._model = model_name
        self.running = self._gauge("num_running_reqs", "The number of running requests.")
        self.queued = self._gauge("num_queue_reqs", "The number of requests in the waiting queue.")
        self.throughput = self._gauge("gen_throughput", "The generation throughput (token/s).")
        self.accept_length = self._gauge(
            "spec_accept_length", "Emitted tokens per verify step, bonus token included."
        )
        self.accept_rate = self._gauge("spec_accept_rate", "Accepted drafts / proposed drafts.")
        self.prompt_tokens = self._counter("prompt_tokens", "Number of prefill tokens processed.")
        self.generated = self._counter("generation_tokens", "Number of generation tokens.")
        self.requests = self._counter("num_requests", "Number of requests processed.")
        self.first_token = self._histogram("time_to_first_token_seconds", "Time to first token.")
        self.inter_token = self._histogram("inter_token_latency_seconds", "Inter-token latency.")
        self.end_to_end = self._histogram("e2e_request_latency_seconds", "Request latency.")
        self.reset_speculation()

    def reset_speculation(self) -> None:
        """Forget the speculation counts; a change of the budget starts a new average."""
        self.verify_steps = self.accepted = self.proposed = 0

    @property
    def average_accept_length(self) -> float | None:
        """Pooled accept length since the last reset; None before the first verify step."""
        return 1 + self.accepted / self.verify_steps if self.verify_steps else None

    def watch(self, created: float) -> "RequestWatch":
        """The recorder of one request that came in at `created` (time.perf_counter)."""
        return RequestWatch(self, created)

    def render(self) -> bytes:
        """The text exposition of all series."""
        return generate_latest(self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        gauge = Gauge(f"sglang:{name}", text, ["model_name"], registry=self.registry)
        return gauge.labels(self._model)

    def _counter(self, name: str, text: str) -> Counter:
        counter = Counter(f"sglang:{name}", text, ["model_name"], registry=self.registry)
        return counter.labels(self._model)

    def _histogram(self, name: str, text: str) -> Histogram:
        histogram = Histogram(
            f"sglang:{name}", text, ["model_name"], registry=self.registry, buckets=_SECONDS
        )
        return histogram.labels(self._model)


class RequestWatch:
    """Turns the updates of one request into the server's metrics."""

    def __init__(self, metrics: Metrics, created: float) -> None:
        self._metrics, self._created = metrics, created
        self._started = self._last = time.perf_counter()
        self._seen = Update((), "")

    def step(self, update: Update) -> None:
        """Record what `update` adds to the one before it."""
        metrics, seen, now = self._metrics, self._seen, time.perf_counter()
        added = len(update.output_ids) - len(seen.output_ids)
        if added and not seen.output_ids:
            metrics.first_token.observe(now - self._created)
        elif added:
            for _ in range(added):
                metrics.inter_token.observe((now - self._last) / added)
        metrics.generated.inc(added)
        metrics.verify_steps += update.verify_steps - seen.verify_steps
        metrics.accepted += update.accepted - seen.accepted
        metrics.proposed += update.proposed - seen.proposed
        if metrics.verify_steps:
            metrics.accept_length.set(1 + metrics.accepted / metrics.verify_steps)
            metrics.accept_rate.set(metrics.accepted / max(metrics.proposed, 1))
        if len(update.output_ids) > 1:
            metrics.throughput.set(len(update.output_ids) / (now - self._started))
        self._seen, self._last = update, now

    def done(self, prompt_tokens: int) -> None:
        """Record the end of the request."""
        metrics = self._metrics
        metrics.prompt_tokens.inc(prompt_tokens)
        metrics.requests.inc()
        metrics.end_to_end.observe(time.perf_counter() - self._created)
        metrics.throughput.set(0)
