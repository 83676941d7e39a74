"""Greedy agreement with the baseline arm, the first divergence judged by the target's logits.

Two correct engines part where two logits are nearly equal, because other batch shapes round
differently; a wrong one parts anywhere. So the first divergence counts as a near tie when the
target's own gap there is small, and as different otherwise (vllm-ddtree's findings say the same).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from .bench_config import BenchConfig
from .prompts import render

TOP = 8  # alternatives asked for; a token below them is no near tie


@dataclass(frozen=True)
class Divergence:
    """Where an arm left the baseline: after `common` tokens, with `token` (None: it ended)."""

    arm: str
    prompt_id: str
    common: tuple[int, ...]
    token: int | None


def outputs(config: BenchConfig, cells: Sequence[Mapping[str, Any]], arm: str) -> dict[str, Any]:
    """{prompt id: output ids} of an arm's first measured answers at the lowest concurrency."""
    lowest = min(config.settings.concurrency)
    found: dict[str, Any] = {}
    for cell in cells:
        if cell["arm"] != arm or cell["warmup"] or cell["concurrency"] != lowest:
            continue
        for record in cell["requests"]:
            if not record["error"] and record["output_ids"] is not None:
                found.setdefault(record["prompt_id"], record["output_ids"])
    return found


def compare(
    config: BenchConfig, cells: Sequence[Mapping[str, Any]], arm: str
) -> tuple[int, list[Divergence]]:
    """(prompts compared, divergences) of an arm against the baseline."""
    wanted = outputs(config, cells, config.settings.baseline)
    found = outputs(config, cells, arm)
    shared = sorted(set(wanted) & set(found))
    parted = []
    for prompt_id in shared:
        expected, got = wanted[prompt_id], found[prompt_id]
        same = 0
        while same < min(len(expected), len(got)) and expected[same] == got[same]:
            same += 1
        if same < max(len(expected), len(got)):
            token = got[same] if same < len(got) else None
            parted.append(Divergence(arm, prompt_id, tuple(expected[:same]), token))
    return len(shared), parted


def verdict(
    arm: str, prompts: int, gaps: Sequence[float | None], threshold: float
) -> dict[str, Any]:
    """One row of the result. `gaps`: a divergence's logit gap, None when it could not be asked.

    With a threshold of 0 (fp32) any divergence fails, whatever its gap. `passed` is None when
    nothing was compared or a gap is unknown.
    """
    known = [gap for gap in gaps if gap is not None]
    near = sum(gap <= threshold for gap in known) if threshold > 0 else 0
    different = len(known) - near if threshold > 0 else len(gaps)
    unknown = len(gaps) - near - different
    undecided = prompts == 0 or (unknown > 0 and different == 0)
    return {
        "arm": arm,
        "prompts": prompts,
        "identical": prompts - len(gaps),
        "near_tie": near,
        "different": different + unknown,
        "max_gap": max(known, default=None),
        "passed": None if undecided else different == 0,
        "threshold": threshold,
    }


async def logit_gap(
    http: httpx.AsyncClient, config: BenchConfig, divergence: Divergence
) -> float | None:
    """Top logit minus the arm's token's logit, at the divergence, by the autoregressive engine.

    Log-probabilities differ by the same amount as logits. A token below the TOP ones gets their
    whole span, a lower bound. None when the engine gives no log-probabilities.
    """
    if divergence.token is None:
        return None
    texts = {prompt.id: prompt.text for found in config.prompts.values() for prompt in found}
    text = render(texts[divergence.prompt_id], config.settings.chat_format)
    one = {"max_new_tokens": 1, "temperature": 0.0}
    try:
        first = await http.post(
            "/generate",
            json={
                "text": text,
                "sampling_params": one,
                "return_logprob": True,
                "logprob_start_len": 0,
            },
        )
        meta = first.json()["meta_info"]
        prompt_ids = [int(entry[1]) for entry in meta["input_token_logprobs"]]
        if len(prompt_ids) != meta["prompt_tokens"]:
            return None
        second = await http.post(
            "/generate",
            json={
                "input_ids": [*prompt_ids, *divergence.common],
                "sampling_params": one,
                "return_logprob": True,
                "top_logprobs_num": TOP,
            },
        )
        ranked = second.json()["meta_info"]["output_top_logprobs"][0]
        best = float(ranked[0][0])
        by_token = {int(entry[1]): float(entry[0]) for entry in ranked}
        return best - by_token.get(divergence.token, float(ranked[-1][0]))
    except (httpx.HTTPError, ValueError, KeyError, TypeError, IndexError):
        return None
