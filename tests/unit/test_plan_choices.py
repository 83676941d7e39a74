"""Each choice of the planner, on saved machines with small changes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from facts.machine import MachineFacts, Python
from facts.nvidia import Toolkit
from operations.plan import PlanError, ServingPlan, choose
from operations.wanted import Wanted
from tests.unit.plan_cases import (
    CASES,
    first_gpus,
    linked,
    machine_of,
    wanted_for,
    with_gpus,
    with_wish,
)

SMALL = {"target": "path:/models/SmolLM2-135M", "drafter": "path:/models/smollm2-135m-dflash-b16"}


def plan_of(name: str, machine: MachineFacts | None = None, **changes: object) -> ServingPlan:
    return choose(machine or machine_of(name), with_wish(wanted_for(name), **changes))


def value_after(argv: tuple[str, ...], flag: str) -> str | None:
    return argv[argv.index(flag) + 1] if flag in argv else None


def arms(plan: ServingPlan) -> dict[str, bool]:
    return {arm.name: arm.possible for arm in plan.arms}


@pytest.mark.parametrize("name", CASES)
def test_a_plan_survives_its_way_through_json(name):
    plan = plan_of(name)
    assert ServingPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


@pytest.mark.parametrize("name", CASES)
def test_values_that_drift_do_not_change_the_plan(name):
    machine = machine_of(name)
    later = replace(
        with_gpus(machine, memory_used_mib=50_000, temperature_c=80, utilization_gpu=99),
        mounts=tuple(replace(mount, free_mib=1) for mount in machine.mounts),
        memory_available_mib=1,
        clock_unix=0,
    )
    assert choose(later, wanted_for(name)) == choose(machine, wanted_for(name))


# engine and service manager


def test_a_host_with_gpus_gets_sglang():
    assert plan_of("b300").engine == "sglang"


def test_a_host_without_gpus_gets_the_reference_engine():
    assert plan_of("cpu", engine="auto").engine == "reference"


def test_a_gpu_group_never_falls_back_to_the_reference_engine():
    broken = replace(machine_of("b300"), gpus=(), gpu_error="no driver communication")
    plan = plan_of("b300", broken)
    assert plan.engine == "sglang"
    assert not any(arms(plan).values())
    assert "no driver communication" in plan.serving_arm.reason


def test_wanted_overrides_the_engine():
    assert plan_of("b300", engine="reference", **SMALL).engine == "reference"


def test_systemd_is_taken_where_it_is_pid_1_and_we_are_root():
    assert plan_of("b300").service_manager == "systemd"


def test_supervisor_is_taken_where_systemd_is_not_pid_1():
    assert plan_of("h200x1").service_manager == "supervisor"


def test_supervisor_is_taken_for_a_user_who_is_not_root():
    user = replace(machine_of("b300"), uid=1000, user="me", home="/home/me")
    plan = plan_of("b300", user)
    assert plan.service_manager == "supervisor"
    assert plan.prefix == "/home/me/.local/share/ddtree"


# parallelism


def test_nvlink_between_all_pairs_gives_tensor_parallelism():
    choice = plan_of("b300").choice("parallelism")
    assert (choice.value, "all 28 pairs NV18" in choice.reason) == ("TP8", True)


def test_pcie_gives_expert_parallelism_and_says_that_it_was_measured():
    choice = plan_of("ct200").choice("parallelism")
    assert (choice.value, "65 tok/s" in choice.reason) == ("EP8", True)


def test_one_pcie_link_among_nvlinks_gives_expert_parallelism():
    island = linked(machine_of("b300"), {(0, 5): "SYS"})
    assert plan_of("b300", island).choice("parallelism").value == "EP8"


def test_a_dense_model_over_pcie_gets_tensor_parallelism():
    plan = plan_of("ct200", target="path:/models/SmolLM2", gpus=None, parallelism="auto")
    assert plan.choice("parallelism").value.startswith("TP")


def test_nine_heads_are_not_split_over_two_gpus():
    choice = plan_of("h200x2", parallelism="auto").choice("parallelism")
    assert choice.value == "TP1"
    assert "9 attention heads" in choice.reason


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("TP8", ["--tp-size", "8"]),
        ("TP4", ["--tp-size", "4"]),
        ("EP8", ["--tp-size", "8", "--ep-size", "8"]),
        ("EP4", ["--tp-size", "8", "--ep-size", "4"]),
        ("PP8", ["--tp-size", "1", "--pp-size", "8"]),
    ],
)
def test_names_of_parallelism_mean_these_flags(name, flags):
    argv = plan_of("b300", parallelism=name).launch_for("ar").argv
    start = argv.index("--tp-size")
    assert list(argv[start : start + len(flags)]) == flags
    assert argv[start + len(flags)] not in ("--ep-size", "--pp-size")


def test_more_gpus_than_there_are_is_refused():
    with pytest.raises(PlanError, match="at least 16 GPUs"):
        plan_of("b300", parallelism="TP16")


def test_an_expert_parallelism_that_does_not_divide_the_gpus_is_refused():
    with pytest.raises(PlanError, match="EP3"):
        plan_of("b300", parallelism="EP3")


# attention


def test_on_b300_a_tree_is_verified_by_triton_and_prefilled_by_trtllm():
    argv = plan_of("b300").launch_for("ddtree-15").argv
    assert value_after(argv, "--prefill-attention-backend") == "trtllm_mla"
    assert value_after(argv, "--decode-attention-backend") == "triton"
    assert value_after(argv, "--speculative-attention-mode") == "decode"
    assert value_after(argv, "--page-size") == "64"


def test_on_b300_the_baseline_keeps_the_fastest_backend():
    assert value_after(plan_of("b300").launch_for("ar").argv, "--attention-backend") == "trtllm_mla"


def test_on_ct200_triton_does_everything():
    plan = plan_of("ct200")
    for launch in plan.launches:
        assert value_after(launch.argv, "--attention-backend") == "triton"


@pytest.mark.parametrize(
    ("name", "backend", "reason"),
    [
        ("b300", "trtllm_mla", "ignores the tree mask"),
        ("b300", "flashinfer", "drops the tree mask for MLA"),
        ("b300", "fa3", "sm_90 only"),
        ("ct200", "flashmla", "ignores the tree mask"),
        ("ct200", "cutlass_mla", "ignores the tree mask"),
    ],
)
def test_a_backend_without_tree_masks_makes_trees_impossible(name, backend, reason):
    plan = plan_of(name, attention_backend=backend)
    trees = [arm for arm in plan.arms if arm.mode == "ddtree"]
    assert trees
    assert all(not arm.possible and reason in arm.reason for arm in trees)
    assert plan.arm == "dflash"


@pytest.mark.parametrize("backend", ["fa3", "flashinfer"])
def test_a_backend_that_honours_masks_but_is_not_driven_is_refused_with_that_reason(backend):
    trees = [
        arm for arm in plan_of("h200x1", attention_backend=backend).arms if arm.mode == "ddtree"
    ]
    assert all(not arm.possible and "honours tree masks" in arm.reason for arm in trees)
    assert all("triton only" in arm.reason for arm in trees)


def test_a_served_tree_with_a_backend_that_drops_masks_is_refused():
    with pytest.raises(PlanError, match="ignores the tree mask"):
        plan_of("b300", attention_backend="trtllm_mla", arm="ddtree-16")


def test_an_unknown_model_gets_triton_everywhere():
    plan = plan_of("b300", target="path:/models/new", parallelism="TP8")
    for launch in plan.launches:
        assert value_after(launch.argv, "--attention-backend") == "triton"


# arms and budgets


def test_pp8_speculates_not_and_says_why():
    plan = plan_of("b300", parallelism="PP8")
    assert arms(plan) == {
        "ar": True,
        "dflash": False,
        "dflash-nooverlap": False,
        "ddtree-15": False,
        "ddtree-31": False,
    }
    assert all("pp_size" in arm.reason for arm in plan.arms if arm.mode != "ar")
    assert plan.arm == "ar"


def test_a_model_that_does_not_fit_makes_every_arm_impossible():
    plan = plan_of("ct200", first_gpus(machine_of("ct200"), 4), gpus=4)
    assert not any(arms(plan).values())
    assert "137.0 GB on each of 4 GPUs" in plan.serving_arm.reason


def test_without_a_drafter_only_ar_is_possible():
    plan = plan_of("b300", drafter=None)
    assert [arm.name for arm in plan.possible_arms] == ["ar"]
    assert plan.arm == "ar"


def test_pcie_starts_with_small_trees_and_nvlink_with_larger_ones():
    def budgets(name: str) -> list[int]:
        return [arm.budget for arm in plan_of(name).arms if arm.budget]

    assert (budgets("ct200"), budgets("b300")) == ([7, 15], [15, 31])


def test_trees_share_one_start_that_is_as_wide_as_the_widest():
    plan = plan_of("b300", budgets=[4, 8, 64])
    starts = {arm.launch for arm in plan.arms if arm.mode == "ddtree"}
    assert starts == {"ddtree"}
    argv = plan.launch_for("ddtree-4").argv
    assert value_after(argv, "--speculative-num-draft-tokens") == "65"


def test_the_shared_start_has_graphs_of_every_benchmarked_width():
    plan = plan_of("b300", budgets=[4, 8, 64], arm="ddtree-8")
    assert plan.launch_for("ddtree-4").env["SGLANG_DDTREE_WIDTHS"] == "5,9"
    assert "SGLANG_DDTREE_WIDTHS" not in plan.serving_launch.env
    assert "SGLANG_DDTREE_WIDTHS" not in plan.launch_for("dflash").env


def test_the_served_tree_is_no_wider_than_it_is():
    plan = plan_of("b300", budgets=[4, 8, 64], arm="ddtree-8")
    assert value_after(plan.serving_launch.argv, "--speculative-num-draft-tokens") == "9"
    assert plan.serving_launch.budget == 8


def test_a_budget_that_an_arm_names_is_benchmarked_too():
    plan = plan_of("b300", arm="ddtree-24", bench={"arms": ["ar", "ddtree-48"]})
    assert [arm.budget for arm in plan.arms if arm.budget] == [15, 24, 31, 48]


def test_the_chain_is_as_long_as_the_drafters_block():
    argv = plan_of("h200x1").launch_for("dflash").argv
    assert value_after(argv, "--speculative-num-draft-tokens") == "16"


def test_a_block_that_only_the_checkpoint_knows_is_left_to_sglang():
    argv = plan_of("b300").launch_for("dflash").argv
    assert "--speculative-num-draft-tokens" not in argv


def test_the_comparison_arm_differs_by_the_overlap_scheduler_alone():
    plan = plan_of("b300")
    chain, without = plan.launch_for("dflash").argv, plan.launch_for("dflash-nooverlap").argv
    assert [word for word in without if word != "--disable-overlap-schedule"] == list(chain)


def test_an_arm_that_is_not_there_is_named_with_those_that_are():
    with pytest.raises(PlanError, match="ar, dflash"):
        plan_of("b300").launch_for("ddtree-7")


# the rest of the command line


def test_int4_experts_use_marlin_on_sm_120_and_flashinfer_on_sm_103():
    def runner(name: str) -> str | None:
        return value_after(plan_of(name).serving_launch.argv, "--moe-runner-backend")

    assert (runner("ct200"), runner("b300")) == ("marlin", "flashinfer_trtllm")


def test_custom_all_reduce_is_off_on_more_than_two_pcie_gpus():
    flag = "--disable-custom-all-reduce"
    assert flag in plan_of("ct200").serving_launch.argv
    assert flag not in plan_of("b300").serving_launch.argv


def test_words_of_wanted_stand_last():
    argv = plan_of("b300", engine_args=["--log-level", "debug"]).serving_launch.argv
    assert argv[-2:] == ("--log-level", "debug")


def test_the_environment_of_wanted_wins():
    plan = plan_of("ct200", environment={"NCCL_PROTO": "LL", "NCCL_P2P_DISABLE": "1"})
    environment = plan.serving_launch.env
    assert (environment["NCCL_PROTO"], environment["NCCL_P2P_DISABLE"]) == ("LL", "1")


def test_triton_gets_the_ptxas_of_the_toolkit_for_both_kinds_of_architecture():
    environment = plan_of("b300").serving_launch.env
    assert environment["TRITON_PTXAS_PATH"] == "/usr/local/cuda-13.0/bin/ptxas"
    assert environment["TRITON_PTXAS_BLACKWELL_PATH"] == "/usr/local/cuda-13.0/bin/ptxas"


@pytest.mark.parametrize(("name", "arch"), [("b300", "10.3a"), ("ct200", "12.0f")])
def test_flashinfer_compiles_for_the_hosts_architecture(name, arch):
    assert plan_of(name).serving_launch.env["FLASHINFER_CUDA_ARCH_LIST"] == arch


def test_deepgemm_is_off_on_sm_120_only():
    assert plan_of("ct200").serving_launch.env["SGLANG_ENABLE_JIT_DEEPGEMM"] == "0"
    assert "SGLANG_ENABLE_JIT_DEEPGEMM" not in plan_of("b300").serving_launch.env


def test_nccl_is_tuned_over_pcie_and_never_looks_for_infiniband():
    pcie, nvlink = plan_of("ct200").serving_launch.env, plan_of("b300").serving_launch.env
    assert (pcie["NCCL_MIN_NCHANNELS"], pcie["NCCL_IB_DISABLE"]) == ("8", "1")
    assert ("NCCL_MIN_NCHANNELS" in nvlink, nvlink["NCCL_IB_DISABLE"]) == (False, "1")


def test_an_old_toolkit_is_not_used_although_it_is_the_default():
    machine = replace(
        machine_of("b300"),
        toolkits=(
            Toolkit("/usr/local/cuda-12.8", "12.8", default=True),
            Toolkit("/usr/local/cuda-13.0", "13.0"),
        ),
    )
    assert plan_of("b300", machine).serving_launch.env["CUDA_HOME"] == "/usr/local/cuda-13.0"


def test_the_plan_is_the_same_before_and_after_the_toolkit_is_installed():
    before = replace(machine_of("b300"), toolkits=(), nvcc=None, ptxas=None)
    after = machine_of("b300")
    assert plan_of("b300", before).launches == plan_of("b300", after).launches


def test_the_start_may_take_as_long_as_the_weights_need():
    # 15 minutes and twice 548 s, in whole minutes
    assert plan_of("b300").start_timeout_s == 2040
    assert plan_of("b300", start_timeout_s=77).start_timeout_s == 77


def test_no_launch_carries_a_hash_that_a_later_release_changes():
    for launch in plan_of("cpu").launches:
        assert launch.argv[0] == "/opt/ddtree/current/venv/bin/python"
        assert launch.env["PYTHONPATH"] == "/opt/ddtree/current/sources"


# the reference engine


def test_the_reference_engine_takes_the_systems_python():
    machine = replace(
        machine_of("cpu"),
        pythons=(Python("/home/me/bin/python3", "3.13.1"), Python("/usr/bin/python3", "3.12.3")),
    )
    assert plan_of("cpu", machine).python == "3.12"


def test_the_reference_engine_lets_uv_bring_a_python_where_the_systems_is_too_old():
    machine = replace(machine_of("cpu"), pythons=(Python("/usr/bin/python3", "3.9.2"),))
    assert plan_of("cpu", machine).python == "3.12"


def test_the_reference_engine_has_no_patch_set_and_no_overlap_arm():
    plan = plan_of("cpu")
    assert (plan.patch_set, plan.lock) == (None, "reference")
    assert "dflash-nooverlap" not in arms(plan)


def test_an_unknown_model_source_is_refused():
    with pytest.raises(PlanError, match="unknown kind"):
        choose(machine_of("cpu"), Wanted(group="X", target="ftp:abc"))
