"""What the server counts, for Prometheus."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from divevlm.serve.http.places import Places


class Metrics:
    def __init__(self, places: Places) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter("divevlm_requests", "Requests by status", ["status"], registry=self.registry)
        self.seconds = Histogram("divevlm_request_seconds", "From first byte to last", registry=self.registry)
        self.visual = Counter("divevlm_visual_tokens", "Visual tokens that came in", registry=self.registry)
        self.kept = Counter("divevlm_kept_tokens", "Visual tokens that were kept", registry=self.registry)
        for name, text, count in (
            ("waiting", "Requests that wait for their turn", lambda: places.waiting),
            ("running", "Requests whose turn it is", lambda: places.running),
        ):
            Gauge(f"divevlm_{name}", text, registry=self.registry).set_function(count)

    def note(self, report: dict[str, Any]) -> None:
        for sample in report["samples"]:
            self.visual.inc(sample["visual"])
            self.kept.inc(len(sample["kept"]))

    def text(self) -> bytes:
        return generate_latest(self.registry)
