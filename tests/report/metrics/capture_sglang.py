"""Prints /metrics text of SGLang's own collectors, without a GPU or a server.

    /path/to/sglang/venv/bin/python capture_sglang.py > sglang-0.5.16.prom

The collector classes of the installed SGLang are made with a tensor-parallel server's labels and
told of one request; prometheus_client writes what the server's /metrics would. Values mean nothing,
names and labels are the engine's.
"""

import sys
from importlib.metadata import version

from prometheus_client import REGISTRY, disable_created_metrics, generate_latest
from prometheus_client.registry import Collector
from sglang.srt.observability.metrics_collector import (
    QueueCount,
    SchedulerMetricsCollector,
    SchedulerStats,
    TokenizerMetricsCollector,
)
from sglang.srt.server_args import ServerArgs

MODEL = {"model_name": "Kimi-K2.6"}
SCHEDULER = {**MODEL, "engine_type": "unified", "tp_rank": "0", "pp_rank": "0", "moe_ep_rank": "0"}
SECONDS = [0.1, 0.5, 1.0, 5.0, 10.0]


def main() -> None:
    disable_created_metrics()  # times of creation would differ from run to run
    own: list[Collector] = list(REGISTRY._collector_to_names)
    defaults = object.__new__(ServerArgs)  # its class attributes; the checks of a start need a GPU
    scheduler = SchedulerMetricsCollector(labels=SCHEDULER, server_args=defaults)
    tokenizer = TokenizerMetricsCollector(
        server_args=defaults,
        labels=MODEL,
        bucket_time_to_first_token=SECONDS,
        bucket_inter_token_latency=SECONDS,
        bucket_e2e_request_latency=SECONDS,
    )
    stats = SchedulerStats(gen_throughput=100.0, token_usage=0.5, spec_accept_length=2.0)
    stats.num_running_reqs, stats.num_queue_reqs = QueueCount(total=1), QueueCount(total=2)
    scheduler.log_stats(stats)
    tokenizer.observe_one_finished_request(
        MODEL,
        prompt_tokens=10,
        generation_tokens=20,
        cached_tokens=0,
        e2e_latency=1.0,
        has_grammar=False,
        spec_verify_ct=10,
    )
    tokenizer.observe_time_to_first_token(MODEL, 0.2)
    tokenizer.observe_inter_token_latency(MODEL, 0.1, 2)
    for collector in own:  # the Python process's own series are no part of the engine
        REGISTRY.unregister(collector)
    print(f"# capture_sglang.py, sglang {version('sglang')}")
    sys.stdout.write(generate_latest(REGISTRY).decode())


if __name__ == "__main__":
    main()
