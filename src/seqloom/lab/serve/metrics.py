"""The server's counters, in the format of Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Metrics:
    """The counters of one server."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "seqloom_requests", "Requests by route and status.", ("route", "method", "status"), registry=registry
        )
        self.seconds = Histogram(
            "seqloom_request_seconds", "Time to answer a request.", ("route",), registry=registry, buckets=SECONDS
        )
        self.in_flight = Gauge("seqloom_requests_in_flight", "Requests being answered.", registry=registry)
        self.connections = Gauge("seqloom_connections", "Open connections.", registry=registry)
        self.rows = Counter("seqloom_rows", "Rows predicted.", ("run",), registry=registry)
        self.steps = Counter("seqloom_stream_steps", "Steps of streams.", ("run",), registry=registry)
        self.call_rows = Histogram(
            "seqloom_call_rows", "Rows in one call of a model.", ("run", "kind"), registry=registry, buckets=ROWS
        )
        self.waiting = Gauge("seqloom_waiting_rows", "Rows that wait for a call.", ("run",), registry=registry)
        self.streams = Gauge("seqloom_streams", "Open streams.", registry=registry)
        self.dropped = Counter("seqloom_streams_dropped", "Streams dropped because they were idle.", registry=registry)
        self.loads = Counter("seqloom_checkpoint_loads", "Checkpoints loaded.", ("run", "outcome"), registry=registry)

    def count_request(self, route: str, method: str, status: int, seconds: float) -> None:
        self.requests.labels(route, method, str(status)).inc()
        self.seconds.labels(route).observe(seconds)

    def write(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        text: bytes = generate_latest(self.registry)
        return text
