"""The board's queries and the alert rules against the text that the exporters really write."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

MONITORING = Path(__file__).parents[2] / "files" / "monitoring"
METRICS = Path(__file__).parent / "metrics"
REAL = Path(__file__).parents[1] / "cases/h200x1/metrics.txt"  # an SGLang server with DDTREE

# dcgm-exporter, etc/default-counters.csv: what it exports without configuration
DCGM = (
    'DCGM_FI_DEV_SM_CLOCK{gpu="0"} 1\nDCGM_FI_DEV_POWER_USAGE{gpu="0"} 1\n'
    'DCGM_FI_DEV_XID_ERRORS{gpu="0"} 0\nDCGM_FI_DEV_FB_FREE{gpu="0"} 1\n'
    'DCGM_FI_DEV_FB_USED{gpu="0"} 1\n'
)
SCRAPED = {"instance", "group", "job"}  # labels that the scrape adds
STREAMED = {"sglang:inter_token_latency_seconds_bucket"}  # not before a streamed answer
SGLANG_ONLY = {"sglang:token_usage"}
WORDS = {"and", "or", "unless", "by", "without", "on", "ignoring", "bool", "offset"}


def labels_by_name(text):
    """{sample name: its label names} of /metrics text."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def reference_text():
    """/metrics of the reference engine's own registry after one request."""
    from refserver.metrics import Metrics
    from refserver.output import Update

    metrics = Metrics("SmolLM2")
    watch = metrics.watch(0.0)
    watch.step(Update((1,), "a"))
    watch.step(Update((1, 2, 3), "abc"))
    watch.done(4)
    return metrics.render().decode()


def supervisor_text(tmp_path):
    """/metrics of the supervisor's own registry."""
    from hostkit.launch import Launch
    from hostkit.metrics import SupervisorMetrics

    launch = Launch("f", "ar", ["true"], 1, str(tmp_path), {})
    return generate_latest(SupervisorMetrics(launch).registry).decode()


@pytest.fixture
def exporters(tmp_path):
    sources = {
        "sglang": (METRICS / "sglang-0.5.16.prom").read_text(),
        "reference": reference_text(),
        "supervisor": supervisor_text(tmp_path),
        "dcgm": DCGM,
    }
    return {name: labels_by_name(text) for name, text in sources.items()}


def board():
    return json.loads((MONITORING / "grafana-board.json").read_text())


def rules():
    groups = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def queries():
    on_board = [(p["title"], t["expr"]) for p in board()["panels"] for t in p["targets"]]
    return on_board + [(rule["alert"], rule["expr"]) for rule in rules()]


def names_in(query):
    """Metric names of a PromQL expression."""
    bare = re.sub(r"\b(by|without|on|ignoring)\s*\([^)]*\)|\{[^}]*\}|\[[^\]]*\]", " ", query)
    found = re.findall(r"[A-Za-z_:][A-Za-z0-9_:]*(?!\w)(?!\s*\()", bare)
    return {name for name in found if name not in WORDS}


def labels_in(query):
    """Label names that a PromQL expression groups by or matches."""
    grouped = re.findall(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)", query)
    matched = re.findall(r"[{,]\s*([a-z_]+)\s*(?:=~|!~|!=|=)", query)
    return {label.strip() for part in grouped for label in part.split(",")} | set(matched)


def test_metric_names_of_a_query_are_found():
    query = 'histogram_quantile(0.9, sum by (le) (rate(a:b_bucket{x="y"}[5m]))) > 5 and up == 1'
    assert names_in(query) == {"a:b_bucket", "up"}
    assert labels_in(query) == {"le", "x"}


@pytest.mark.parametrize(("title", "query"), queries())
def test_every_series_of_a_query_is_exported(exporters, title, query):
    known = {name for source in exporters.values() for name in source} | {"up"}
    assert names_in(query), title
    assert names_in(query) <= known


@pytest.mark.parametrize(("title", "query"), queries())
def test_every_label_of_a_query_exists_on_its_series(exporters, title, query):
    for source in exporters.values():
        for name in names_in(query) & source.keys():
            assert labels_in(query) - SCRAPED <= source[name], (title, name)


def test_both_engines_export_what_the_board_shows_of_an_engine(exporters):
    shown = {n for _, query in queries() for n in names_in(query) if n.startswith("sglang:")}
    assert len(shown) >= 10
    assert shown <= exporters["sglang"].keys()
    assert shown - SGLANG_ONLY <= exporters["reference"].keys()


@pytest.mark.parametrize(("title", "query"), queries())
def test_a_real_engine_exports_the_series_and_labels_of_a_query(title, query):
    real = labels_by_name(REAL.read_text())
    asked = {name for name in names_in(query) if name.startswith("sglang:")} - STREAMED
    assert asked <= real.keys(), title
    assert all(labels_in(query) - SCRAPED <= real[name] for name in asked), title


@pytest.mark.parametrize(
    "needed",
    [
        "sglang:spec_accept_length",
        "sglang:gen_throughput",
        "sglang:time_to_first_token_seconds_bucket",
        "sglang:num_queue_reqs",
        "DCGM_FI_DEV_FB_USED",
        "ddtree_supervisor_state",
    ],
)
def test_board_shows(needed):
    assert any(needed in names_in(t["expr"]) for p in board()["panels"] for t in p["targets"])


def test_panels_have_ids_of_their_own_and_do_not_overlap():
    panels = board()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for grid in (panel["gridPos"] for panel in panels)
        for x in range(grid["x"], grid["x"] + grid["w"])
        for y in range(grid["y"], grid["y"] + grid["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24


def test_every_alert_says_what_is_wrong_and_what_to_do():
    for rule in rules():
        assert set(rule["annotations"]) == {"summary", "remedy"}, rule["alert"]
        assert rule["labels"]["severity"] in ("page", "warn")


promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool not found: apt-get install prometheus"
)


@promtool
def test_promtool_accepts_the_configuration():
    done = subprocess.run(
        ["promtool", "check", "config", str(MONITORING / "prometheus.yml")],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@promtool
def test_made_series_raise_each_alert_and_no_other():
    file = METRICS / "alerts_test.yml"
    tested = {
        item["alertname"]
        for test in yaml.safe_load(file.read_text())["tests"]
        for item in test["alert_rule_test"]
    }
    assert tested == {rule["alert"] for rule in rules()}
    done = subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.sglang
@pytest.mark.timeout(600)
def test_stored_text_is_what_the_installed_sglangs_collectors_write():
    python = os.environ.get("SGLANG_PYTHON", sys.executable)
    done = subprocess.run(
        [python, str(METRICS / "capture_sglang.py")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    stored = (METRICS / "sglang-0.5.16.prom").read_text()
    assert labels_by_name(done.stdout) == labels_by_name(stored)
