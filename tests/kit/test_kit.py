"""A kit verifies itself: what is in it, and what a changed byte, number or secret does."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from made_results import changed, made_gpu_machine, made_result, two_groups
from scipy import stats

from operations import kit as kits
from operations.artifacts import FILES, ROOT, Tree
from operations.kit_parts import gather, main, patched_sources, release_files, stale_parts
from operations.plan import ServingPlan
from operations.release import layout_of
from operations.results import parse_result, read_result
from operations.wanted import Wanted

sys.path.insert(0, str(FILES / "kit"))
import verify

AR = [10.0, 10.4, 9.6]
RATES = {"ar": {1: AR}, "dflash": {1: [9.0, 11.0, 10.5]}, "ddtree-32": {1: [15.0, 16.1, 14.2]}}


def made_kit_document(**fields):
    document = changed(made_result(RATES), **fields)
    for row in document["correctness"]:  # as the made records are: other lengths, other ids
        row |= {"identical": 0, "near_tie": 4, "prompts": 4}
    document["correctness"][-1] |= {"identical": 4, "near_tie": 0}  # 16 tokens, as ar
    return document


RESULT = parse_result(made_kit_document())
PARTS = {"sources/made.py": b"made\n", "stack/made.lock": b"made==1\n"}


@pytest.fixture(scope="module")
def built():
    return kits.build_kit(RESULT, PARTS, environment={})


@pytest.fixture
def folder(built, tmp_path):
    kits.write_kit(built, tmp_path / "kit")
    return tmp_path / "kit"


def verified(folder, *arguments):
    """(exit code, output) of the kit's own verify.py, isolated from this project's modules."""
    done = subprocess.run(
        [sys.executable, "-I", str(folder / "verify.py"), *arguments],
        capture_output=True, text=True, cwd=folder,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def seal(folder):
    """Writes new hashes, as one who changes a number would."""
    lines = []
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != "SHA256SUMS":
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            lines.append(f"{digest}  {path.relative_to(folder).as_posix()}\n")
    (folder / "SHA256SUMS").write_text("".join(sorted(lines, key=lambda line: line[66:])))


def edit(path, change):
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def test_an_untouched_kit_holds(folder):
    code, output = verified(folder)
    assert code == 0, output
    assert "the kit holds" in output
    assert "45 redrawn from records/result.json, 0 faults" in output


def test_it_says_what_it_takes_on_trust(folder):
    output = verified(folder)[1]
    assert output.count("on trust:") == len(kits.NOT_REDERIVABLE)
    assert "logit gaps" in output


def test_same_result_gives_the_same_bytes(built):
    assert kits.build_kit(RESULT, PARTS, environment={}) == built


@pytest.mark.parametrize(
    "name", ["report.html", "records/result.json", "verify.py", "sources/made.py"]
)
def test_a_changed_byte_fails_it(folder, name):
    path = folder / name
    path.write_bytes(path.read_bytes() + b"\n")
    code, output = verified(folder)
    assert code == 1
    assert f"FAULT        {name}: changed" in output


def test_a_missing_file_fails_it(folder):
    (folder / "sources" / "made.py").unlink()
    code, output = verified(folder)
    assert code == 1
    assert "sources/made.py: missing" in output


def test_a_file_that_is_not_listed_fails_it(folder):
    (folder / "more.txt").write_text("made")
    code, output = verified(folder)
    assert code == 1
    assert "more.txt: not listed" in output


HEADLINE = json.loads(kits.build_kit(RESULT, PARTS, environment={})["headline.json"])
FIGURES = [name for name, value in HEADLINE["rows"][2].items() if isinstance(value, float | int)]
LOAD = {"concurrency", "temperature", "max_new_tokens"}


@pytest.mark.parametrize("figure", [name for name in FIGURES if name not in LOAD])
def test_a_changed_headline_figure_fails_it_even_with_new_hashes(folder, figure):
    def change(document):
        document["rows"][2][figure] = document["rows"][2][figure] * 1.001 + (figure == "errors")

    edit(folder / "headline.json", change)
    seal(folder)
    code, output = verified(folder)
    assert code == 1
    assert f"{figure} is" in output
    assert "0 faults" in output.split("files:")[1].splitlines()[0]


def test_a_changed_verdict_fails_it_even_with_new_hashes(folder):
    edit(folder / "headline.json", lambda d: d["rows"][1].update(verdict="faster"))
    seal(folder)
    code, output = verified(folder)
    assert code == 1
    assert "verdict is faster in headline.json, no decision by the raw records" in output


def test_another_arm_called_best_fails_it_even_with_new_hashes(folder):
    edit(folder / "headline.json", lambda d: d["best"][0].update(arm="dflash"))
    seal(folder)
    code, output = verified(folder)
    assert code == 1
    assert "dflash is called best, by the figures it is ddtree-32" in output


def test_a_changed_raw_record_fails_it_even_with_new_hashes(folder):
    def change(document):
        document["cells"][-1]["wall_s"] *= 0.9

    edit(folder / "records" / "result.json", change)
    seal(folder)
    assert verified(folder)[0] == 1


def test_a_dropped_arm_fails_it_even_with_new_hashes(folder):
    edit(folder / "headline.json", lambda d: d["rows"].pop())
    seal(folder)
    code, output = verified(folder)
    assert code == 1
    assert "ddtree-32: measured, but not in headline.json" in output


def test_agreement_that_the_token_ids_do_not_show_fails_it(folder):
    def change(document):
        document["correctness"][0] |= {"identical": 4, "near_tie": 0}

    edit(folder / "records" / "result.json", change)
    seal(folder)
    code, output = verified(folder)
    assert code == 1
    assert "correctness of dflash: 0 of 4 outputs are identical by the token ids" in output


def test_a_gate_passed_with_different_output_fails_it(folder):
    def change(document):
        document["correctness"][0] |= {"near_tie": 3, "different": 1, "passed": True}

    edit(folder / "records" / "result.json", change)
    seal(folder)
    assert "the record contradicts itself" in verified(folder)[1]


def test_anothers_result_is_laid_beside_the_kits(folder, tmp_path):
    mine = tmp_path / "mine.json"
    mine.write_text(json.dumps(made_result({"ar": {1: AR}, "ddtree-32": {1: [2 * r for r in AR]}})))
    code, output = verified(folder, "--against", str(mine))
    assert code == 0
    row = next(line for line in output.splitlines() if line.startswith("ddtree-32"))
    assert "2.00 (2.00-2.00)" in row
    assert next(x for x in output.splitlines() if x.startswith("dflash")).split()[-1] == "-"


def test_a_document_that_is_no_result_is_told_in_one_line(folder, tmp_path):
    other = tmp_path / "other.json"
    other.write_text("{}")
    code, output = verified(folder, "--against", str(other))
    assert code == 1
    assert "other.json: expected a result of hostkit bench (schema ddtree-bench/1)" in output
    assert "Traceback" not in output


@pytest.mark.parametrize("freedom", [2, 4, 9, 40])
def test_students_t_agrees_with_scipy(freedom):
    assert verify.t_quantile(0.975, freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-9)


def test_headline_of_a_large_matrix_is_redrawn_in_full():
    result = parse_result(two_groups()[0])
    document = kits.headline(result)
    count, faults = verify.figure_faults(document, json.loads(json.dumps(dict(result.document))))
    assert (count, faults) == (16 * 15, [])


# -- secrets


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (b"token: hf_" + b"A1b2" * 8, "a Hugging Face token"),
        (b"-----BEGIN OPENSSH PRIVATE KEY-----", "a private key"),
        (b"s3cr3t-from-the-environment", r"the value of \$MADE_API_KEY"),
    ],
)
def test_a_kit_with_a_secret_is_refused_and_the_secret_is_not_repeated(text, kind):
    environment = {"MADE_API_KEY": "s3cr3t-from-the-environment"}
    with pytest.raises(kits.KitError, match=f"found {kind} in sources/made.py") as refused:
        kits.build_kit(RESULT, PARTS | {"sources/made.py": text}, environment=environment)
    assert text.decode() not in str(refused.value)


def test_a_token_in_the_engines_environment_is_refused():
    plan = dict(RESULT.plan)
    plan["launches"] = [plan["launches"][0] | {"env": {"HF_TOKEN": "hf_" + "x" * 34}}]
    result = parse_result(changed(RESULT.document, plan=plan))
    with pytest.raises(kits.KitError, match="Hugging Face token"):
        kits.build_kit(result, PARTS, environment={})


def test_names_that_only_look_like_tokens_pass():
    text = b"hf_hub_download hf_transfer hf_config_from_pretrained_model"
    kits.build_kit(RESULT, PARTS | {"sources/made.py": text}, environment={"TOKEN": "short"})


# -- parts


def test_reproduce_names_the_host_that_is_needed_and_the_commands():
    document = changed(made_result(RATES, engine="sglang", machine=made_gpu_machine("NV18")))
    text = kits.build_kit(parse_result(document), PARTS, environment={})["REPRODUCE.md"].decode()
    assert "8 GPUs of compute capability 12.0 on one host" in text
    assert "apply.py apply sources/patches/sglang-0.5.16 /opt/ddtree/current/venv" in text
    assert "uv pip sync --require-hashes --python /opt/ddtree/current/venv stack/made.lock" in text
    assert "\n    OMP_NUM_THREADS=8 engine --model-path /made/target --port 30000" in text
    assert "pp8-dflash: made: DFLASH refuses pipeline parallelism" in text
    assert kits.NOT_PATCHED in text


def test_reproduce_says_what_a_system_stack_and_a_folder_of_the_host_leave_unknown():
    document = changed(
        made_result(RATES, engine="sglang", machine=made_gpu_machine("NV18")),
        versions={"venv": "system-0123456789ab", "engine": "0.5.16"},
    )
    text = kits.build_kit(parse_result(document), PARTS, environment={})["REPRODUCE.md"].decode()
    assert "of the pins above only SGLang's release, 0.5.16, is known" in text
    assert "target `made-target`: a folder of the host that was measured, `/m`" in text
    locked = parse_result(changed(document, versions={"venv": "0123456789ab"}))
    kit = kits.build_kit(locked, PARTS, environment={})
    assert b"stack: system" not in kit["REPRODUCE.md"]


def test_the_release_in_a_kit_bears_the_name_that_it_had_on_the_host():
    """A plan does not say `stack: system`; the venv's name among the versions does."""
    result = read_result(next((ROOT / "docs/example").glob("H200-*/records/result.json")))
    plan = ServingPlan.from_json(result.plan)
    stack = {"stack": "system", "stack_from": "/opt/sglang-host/python3"}
    wanted = Wanted(group=plan.group, target=plan.target.source, **stack)
    launch = json.loads(release_files(result)["release/launch.json"])
    assert launch["fingerprint"] == layout_of(plan, wanted).release


def test_reference_kit_holds_harness_engine_drafter_prompts_and_pins():
    files = gather(RESULT)
    for name in (
        "sources/hostkit/bench.py",
        "sources/hostkit/prompts/chat.json",
        "sources/refserver/tree.py",
        "stack/reference.lock",
        "stack/tools.lock",
    ):
        assert name in files, name
    assert any(name.startswith("sources/drafters/") for name in files)


def test_sglang_kit_holds_the_patch_set_and_its_pins():
    files = gather(parse_result(made_result(RATES, engine="sglang")))
    for name in (
        "sources/patches/apply.py",
        "sources/patches/sglang-0.5.16/series.yaml",
        "sources/patches/sglang-0.5.16/new/sglang_ddtree/tree.py",
        "stack/sglang-0.5.16-cu130.lock",
    ):
        assert name in files, name
    assert not any(name.startswith("sources/refserver/") for name in files)


def test_the_applier_of_a_kit_runs_from_the_kit_alone(tmp_path):
    kits.write_kit(gather(parse_result(made_result(RATES, engine="sglang"))), tmp_path / "kit")
    words = ["sources/patches/apply.py", "status", "sources/patches/sglang-0.5.16", "no-venv"]
    done = subprocess.run(
        [sys.executable, "-I", *words], capture_output=True, text=True, cwd=tmp_path / "kit"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("sglang-0.5.16 (sglang == 0.5.16): absent")


def test_sources_that_changed_since_the_measurement_are_named():
    tree = Tree({"hostkit/supervise.py": b"other"})
    result = parse_result(changed(RESULT.document, versions={"code": "000000000000"}))
    assert stale_parts(result, tree)[0].startswith("code: measured with 000000000000, this")
    assert stale_parts(RESULT) == []  # a result without hashes says nothing


def test_patched_sources_are_taken_only_as_the_series_leaves_them():
    after = hashlib.sha256(b"patched").hexdigest()
    series = {"name": "made", "patches": [{"edits": [{"path": "pkg/a.py", "after": after}]}]}
    assert patched_sources(series, {"pkg/a.py": b"patched"}.get) == {"patched/pkg/a.py": b"patched"}
    with pytest.raises(kits.KitError, match=r"pkg/a\.py as patch set made leaves it, found other"):
        patched_sources(series, {"pkg/a.py": b"pristine"}.get)
    with pytest.raises(kits.KitError, match="found no such file"):
        patched_sources(series, {}.get)


def test_bench_json_of_the_kit_is_what_hostkit_reads(built, tmp_path):
    from hostkit.bench_config import read_config

    document = json.loads(built["bench.json"])
    for launch in document["launches"].values():
        launch["port"] = 30000  # the made plan has none
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(document))
    assert [arm.name for arm in read_config(path).arms] == ["ar", "dflash", "ddtree-32"]


def test_command_line_builds_a_kit_that_holds(tmp_path, capsys):
    source = tmp_path / "result.json"
    source.write_text(json.dumps(dict(RESULT.document)))
    assert main(["build", str(source), "--out", str(tmp_path / "kits")]) == 0
    folder = tmp_path / "kits" / "MADE-0123456789ab"
    assert str(folder) in capsys.readouterr().out
    assert verified(folder)[0] == 0
    assert (folder / "sources" / "hostkit" / "bench.py").is_file()


def test_slim_kit_holds_and_keeps_the_hashes_of_what_it_leaves_out(tmp_path):
    source = tmp_path / "result.json"
    source.write_text(json.dumps(dict(RESULT.document)))
    assert main(["build", str(source), "--out", str(tmp_path), "--slim"]) == 0
    folder = tmp_path / "MADE-0123456789ab"
    assert verified(folder)[0] == 0
    assert not (folder / "sources").exists()
    digest = hashlib.sha256((FILES / "hostkit" / "bench.py").read_bytes()).hexdigest()
    assert f"{digest}  sources/hostkit/bench.py\n" in (folder / "sources.sha256").read_text()
    assert "sha256sum --check --quiet sources.sha256" in (folder / "REPRODUCE.md").read_text()


def test_command_line_refuses_other_sources_in_one_line(tmp_path, capsys):
    source = tmp_path / "result.json"
    document = changed(RESULT.document, versions={"code": "000000000000"})
    source.write_text(json.dumps(document))
    assert main(["build", str(source), "--out", str(tmp_path / "kits")]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "kits").exists()
    assert main(["build", str(source), "--out", str(tmp_path / "kits"), "--other-sources"]) == 0
    text = (tmp_path / "kits" / "MADE-0123456789ab" / "REPRODUCE.md").read_text()
    assert "not those that were measured: code: measured with 000000000000" in text


def test_a_kit_is_replaced_whole(built, tmp_path):
    folder = tmp_path / "kit"
    folder.mkdir()
    (folder / "old").write_text("made")
    kits.write_kit(built, folder)
    assert not (folder / "old").exists()
    assert not Path(f"{folder}.part").exists()
