"""The supervisor's own Prometheus metrics, beside those of the engine."""

import logging

from prometheus_client import CollectorRegistry, Counter, Enum, Gauge, Info, start_http_server

from .launch import Launch

STATES = ("starting", "ready", "failed", "stopped")
log = logging.getLogger("hostkit")


class SupervisorMetrics:
    """State, restarts and time to ready; served on metrics_port when the launch names one."""

    def __init__(self, launch: Launch):
        self.registry = CollectorRegistry()
        labels = {"fingerprint": launch.fingerprint, "arm": launch.arm}
        Info("ddtree_supervisor", "What is supervised", registry=self.registry).info(labels)
        self.state = Enum(
            "ddtree_supervisor_state",
            "State of the supervised engine",
            states=list(STATES),
            registry=self.registry,
        )
        self.restarts = Counter(
            "ddtree_supervisor_restarts", "Engine restarts after a failure", registry=self.registry
        )
        self.ready_seconds = Gauge(
            "ddtree_supervisor_ready_seconds",
            "Seconds from the engine's start to its first served generation",
            registry=self.registry,
        )
        self.health_failures = Counter(
            "ddtree_supervisor_health_failures",
            "Health probes of a ready engine that failed",
            registry=self.registry,
        )
        self._host, self._port = launch.host, launch.metrics_port

    def serve(self) -> None:
        """Starts the exporter's thread; does nothing without a port."""
        if self._port is not None:
            start_http_server(self._port, self._host, registry=self.registry)
            log.info("metrics of the supervisor on %s:%d", self._host, self._port)
