#!/usr/bin/env python3
"""Checks this reproduction kit. Standard library only, Python 3.9 or newer.

    python verify.py                      every hash, and every headline figure from the raw records
    python verify.py --against MINE.json  beside that, your own `hostkit bench` result

Exit 0 when all holds; 1 with a line for each fault. A changed byte fails its hash. A changed number
fails even with a new hash: the figures of headline.json are computed anew from records/result.json.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
SUMS = "SHA256SUMS"
MIN_ROUNDS = 3
LOAD = "{}, T={:g}, {} new tokens, concurrency {}"
CLOSE = 6e-6  # headline.json keeps 6 significant digits

Key = tuple[str, str, float, int, int]
Figures = dict[str, Any]


# -- hashes -------------------------------------------------------------------------------------


def hash_faults(folder: Path) -> tuple[int, list[str]]:
    """(files listed, faults): changed, missing and unlisted files."""
    listed: dict[str, str] = {}
    for line in (folder / SUMS).read_text(encoding="utf-8").splitlines():
        digest, _, name = line.partition("  ")
        listed[name] = digest
    faults = []
    for name, digest in sorted(listed.items()):
        path = folder / name
        if not path.is_file():
            faults.append(f"{name}: missing")
        elif hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            faults.append(f"{name}: changed, its sha256 is not the listed one")
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and name != SUMS and name not in listed and "__pycache__" not in name:
            faults.append(f"{name}: not listed in {SUMS}")
    return len(listed), faults


# -- figures from raw records --------------------------------------------------------------------


def cell_key(cell: dict[str, Any]) -> Key:
    return (
        cell["arm"],
        cell["prompt_set"],
        float(cell["temperature"]),
        int(cell["max_new_tokens"]),
        int(cell["concurrency"]),
    )


def redraw(result: dict[str, Any]) -> dict[Key, Figures]:
    """Headline figures of every arm at every load; times in seconds, rates in tokens/s."""
    cells: dict[Key, list[dict[str, Any]]] = {}
    for cell in result["cells"]:
        if not cell["warmup"]:
            cells.setdefault(cell_key(cell), []).append(cell)
    baseline = result["settings"].get("baseline", "ar")
    return {
        key: figures(own, cells.get((baseline, *key[1:]), []), key[0] == baseline)
        for key, own in cells.items()
    }


def figures(cells: list[dict[str, Any]], base: list[dict[str, Any]], is_baseline: bool) -> Figures:
    """One arm at one load against the baseline's cells of the same load."""
    records = [record for cell in cells for record in cell["requests"]]
    good = [record for record in records if record["error"] is None]
    counted = [record for record in good if record["verify_steps"]]
    steps = sum(record["verify_steps"] for record in counted)
    emitted = sum(record["completion_tokens"] for record in counted)
    own = [record["completion_tokens"] / record["verify_steps"] for record in counted]
    tpot = middle(
        (r["end_s"] - r["first_token_s"]) / (r["completion_tokens"] - 1)
        for r in good
        if r["first_token_s"] is not None and r["completion_tokens"] > 1
    )
    rates, other = round_rates(cells), round_rates(base)
    found: Figures = {
        "rounds": len(cells),
        "requests": len(records),
        "errors": len(records) - len(good),
        "output_tokens": sum(record["completion_tokens"] for record in good),
        "total_tokens_s": middle(rates.values()),
        "user_tokens_s": 1 / tpot if tpot else None,
        "ttft_p50_s": middle(
            r["first_token_s"] - r["start_s"] for r in good if r["first_token_s"] is not None
        ),
        "tpot_p50_s": tpot,
        "verify_steps": steps or None,
        "accept_length": emitted / steps if steps else None,
        "accept_length_unweighted": sum(own) / len(own) if own else None,
    }
    if is_baseline:
        return {**found, "ratio": 1.0, "ratio_low": 1.0, "ratio_high": 1.0, "verdict": "baseline"}
    shared = sorted(rates.keys() & other.keys())
    return {**found, **compare([rates[n] / other[n] for n in shared])}


def middle(values: Iterable[float]) -> float | None:
    found = list(values)
    return median(found) if found else None


def round_rates(cells: list[dict[str, Any]]) -> dict[int, float]:
    """Output tokens / wall time of each round."""
    rates = {}
    for cell in cells:
        tokens = sum(r["completion_tokens"] for r in cell["requests"] if r["error"] is None)
        if tokens and cell["wall_s"] > 0:
            rates[int(cell["round"])] = tokens / cell["wall_s"]
    return rates


def compare(ratios: list[float]) -> Figures:
    """Median of paired ratios, Student's t interval of their logs at 95 %, and the verdict."""
    count = len(ratios)
    if not count:
        none = {"ratio": None, "ratio_low": None, "ratio_high": None}
        return {**none, "verdict": "not measured"}
    logs = [math.log(ratio) for ratio in ratios]
    found: Figures = {"ratio": math.exp(median(logs)), "ratio_low": None, "ratio_high": None}
    if count < MIN_ROUNDS:
        return {**found, "verdict": "too few repeats"}
    mean = math.fsum(logs) / count
    variance = math.fsum((value - mean) ** 2 for value in logs) / (count - 1)
    half = t_quantile(0.975, count - 1) * math.sqrt(variance / count)
    low, high = math.exp(mean - half), math.exp(mean + half)
    verdict = "faster" if low > 1 else "slower" if high < 1 else "no decision"
    return {**found, "ratio_low": low, "ratio_high": high, "verdict": verdict}


def t_quantile(probability: float, freedom: int) -> float:
    """Quantile above 0.5 of Student's t, by bisection of its distribution function."""
    low, high = 0.0, 1e6
    for _ in range(200):
        guess = (low + high) / 2
        tail = incomplete_beta(freedom / (freedom + guess * guess), freedom / 2, 0.5) / 2
        low, high = (guess, high) if 1 - tail < probability else (low, guess)
    return (low + high) / 2


def incomplete_beta(x: float, a: float, b: float) -> float:
    """Regularised incomplete beta function by a continued fraction (Numerical Recipes 6.4)."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):
        return 1 - incomplete_beta(1 - x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    front = math.exp(log_front + a * math.log(x) + b * math.log1p(-x)) / a
    value, c, d = 1.0, 1.0, 0.0
    for i in range(400):
        m = i // 2
        if i == 0:
            term = 1.0
        elif i % 2 == 0:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        else:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d = 1 / (1 + term * d or 1e-300)
        c = 1 + term / c or 1e-300
        value *= c * d
        if abs(1 - c * d) < 1e-15:
            break
    return front * (value - 1)


# -- correctness ---------------------------------------------------------------------------------


def first_outputs(result: dict[str, Any], arm: str) -> dict[str, list[int]]:
    """First measured answer to each prompt at the lowest concurrency, as token ids."""
    cells = [c for c in result["cells"] if c["arm"] == arm and not c["warmup"]]
    lowest = min((c["concurrency"] for c in cells), default=0)
    found: dict[str, list[int]] = {}
    for cell in cells:
        for record in cell["requests"] if cell["concurrency"] == lowest else []:
            if record["error"] is None and record["output_ids"] is not None:
                found.setdefault(record["prompt_id"], record["output_ids"])
    return found


def correctness_faults(result: dict[str, Any]) -> tuple[int, list[str]]:
    """(arms judged, faults): the counts of identical outputs must follow from the token ids."""
    wanted = first_outputs(result, result["settings"].get("baseline", "ar"))
    faults = []
    for row in result["correctness"]:
        found = first_outputs(result, row["arm"])
        shared = sorted(wanted.keys() & found.keys())
        identical = sum(wanted[name] == found[name] for name in shared)
        seen = (len(shared), identical)
        if seen != (row["prompts"], row["identical"]):
            faults.append(
                f"correctness of {row['arm']}: {seen[1]} of {seen[0]} outputs are identical by the "
                f"token ids, the record says {row['identical']} of {row['prompts']}"
            )
        parts = row["identical"] + row["near_tie"] + row["different"]
        if parts != row["prompts"] or (row["passed"] and row["different"]):
            faults.append(f"correctness of {row['arm']}: the record contradicts itself")
    return len(result["correctness"]), faults


# -- the kit -------------------------------------------------------------------------------------


def figure_faults(headline: dict[str, Any], result: dict[str, Any]) -> tuple[int, list[str]]:
    """(figures compared, faults) of headline.json against the raw records."""
    redrawn = redraw(result)
    faults, count = [], 0
    for row in headline["rows"]:
        key = cell_key(row)
        computed = redrawn.pop(key, None)
        name = f"{key[0]}, {LOAD.format(*key[1:])}"
        if computed is None:
            faults.append(f"{name}: no raw record")
            continue
        for figure, value in computed.items():
            count += 1
            if not same(row.get(figure), value):
                faults.append(
                    f"{name}: {figure} is {row.get(figure)} in headline.json, "
                    f"{value} by the raw records"
                )
    faults += [f"{key[0]}: measured, but not in headline.json" for key in redrawn]
    for name in ("fingerprint", "group", "host"):
        if headline[name] != result[name]:
            faults.append(f"headline.json is of {name} {headline[name]}, the records of another")
    return count, faults


def best_faults(headline: dict[str, Any], result: dict[str, Any]) -> list[str]:
    """The arm called best at each load: the most tokens/s of those that are faster, and right."""
    passed = {row["arm"]: row["passed"] for row in result["correctness"]}
    able: dict[str, list[dict[str, Any]]] = {}
    for row in headline["rows"]:
        load = able.setdefault(LOAD.format(*cell_key(row)[1:]), [])
        if row["verdict"] == "faster" and passed.get(row["arm"]) is True and not row["errors"]:
            load.append(row)
    computed = {
        load: max(rows, key=lambda row: row["total_tokens_s"])["arm"] if rows else None
        for load, rows in able.items()
    }
    written = {row["load"]: row["arm"] for row in headline["best"]}
    return [
        f"{load}: {written.get(load)} is called best, by the figures it is {arm}"
        for load, arm in computed.items()
        if written.get(load) != arm
    ]


def same(written: Any, computed: Any) -> bool:
    if isinstance(written, float) and isinstance(computed, float):
        return math.isclose(written, computed, rel_tol=CLOSE)
    return bool(written == computed)


def against(headline: dict[str, Any], mine: dict[str, Any]) -> list[str]:
    """Speed to the baseline and accept length of the kit beside another result's, as lines."""
    redrawn = redraw(mine)
    lines = [
        f"{'arm':<18} {'conc.':>5}  {'speed: kit':>18} {'yours':>18}  {'accept: kit':>11} yours"
    ]
    for row in headline["rows"]:
        own = redrawn.get(cell_key(row), {})
        lines.append(
            f"{row['arm']:<18} {row['concurrency']:>5}  {spread(row):>18} {spread(own):>18}  "
            f"{two(row.get('accept_length')):>11} {two(own.get('accept_length')):>5}"
        )
    return lines


def spread(row: Figures) -> str:
    if row.get("ratio_low") is None or row.get("verdict") == "baseline":
        return two(row.get("ratio"))
    return f"{two(row['ratio'])} ({two(row['ratio_low'])}-{two(row['ratio_high'])})"


def two(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def read_json(path: Path) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return document
    except (OSError, ValueError) as error:
        sys.exit(f"{path}: expected a JSON document, found {error}")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--against", type=Path, metavar="MINE.json", help="your own result, to show beside it"
    )
    given = parser.parse_args(argv)
    headline = read_json(HERE / "headline.json")
    result = read_json(HERE / headline["records"])
    files, broken = hash_faults(HERE)
    compared, wrong = figure_faults(headline, result)
    judged, unlike = correctness_faults(result)
    wrong += best_faults(headline, result)
    faults = broken + wrong + unlike
    print(f"kit {headline['group']}-{headline['fingerprint'][:12]} of {headline['host']}")
    print(f"files:       {files} listed, {len(broken)} faults")
    print(f"figures:     {compared} redrawn from {headline['records']}, {len(wrong)} faults")
    print(f"correctness: {judged} arms recounted from token ids, {len(unlike)} faults")
    for line in headline["not_rederivable"]:
        print(f"on trust:    {line}")
    for fault in faults:
        print(f"FAULT        {fault}")
    if given.against:
        mine = read_json(given.against)
        if mine.get("schema") != result["schema"]:
            sys.exit(
                f"{given.against}: expected a result of hostkit bench (schema {result['schema']}), "
                f"found {mine.get('schema') or 'another document'}"
            )
        print(*against(headline, mine), sep="\n")
    print("the kit is not what was built" if faults else "the kit holds")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
