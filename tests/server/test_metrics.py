"""What Prometheus reads."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families


def test_requests_batches_and_the_queue_are_counted(client):
    def read():
        families = text_string_to_metric_families(client.get("/metrics").body.decode())
        return {
            (sample.name, *sample.labels.values()): sample.value for family in families for sample in family.samples
        }

    key = ("bertkit_requests_total", "/predict", "200")
    before = read().get(key, 0)
    client.post("/predict", {"inputs": [["good"], ["bad film"]]})
    after = read()
    assert after[key] == before + 1
    assert after[("bertkit_queue_rows", "run")] == 0
    assert after[("bertkit_batch_rows_count", "run")] >= 1
