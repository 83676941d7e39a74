"""Verify attention alone: SGLang's extend kernel against the patch set's split one, on one GPU.

    PYTHONPATH=files/patches/sglang-0.5.16/new python tests/gpu/attention.py [--tiles]

Both run CALLS times inside a CUDA graph, as a server's layers do; the graphs are replayed in turns,
and the table holds medians of microseconds a call. Tree masks, bf16. --tiles also tries other tile
shapes and least chunks of the split kernel, and prints the best; --warm only compiles, so that
several processes (say one a --model and shape) can fill Triton's cache first.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Callable

import torch
from sglang.kernels.ops.attention.extend_attention import extend_attention_fwd
from sglang_ddtree import tree_attention

CALLS, ROUNDS = 24, 9
# heads, KV heads, query dims, value dims of one GPU
MODELS = {
    "SmolLM2-135M": (9, 3, 64, 64),
    "32 heads of 128 over 8": (32, 8, 128, 128),
    "Kimi K2 at TP8 (MLA)": (8, 1, 576, 512),
}
SHAPES = [
    (1, 16, 200), (1, 32, 200), (1, 16, 2000), (1, 32, 16000),
    (8, 16, 200), (8, 32, 2000), (32, 16, 2000),
]  # fmt: skip
TILES = [
    (*tile, chunk)
    for tile in itertools.product((16, 32, 64), (32, 64), (4, 8), (1, 2, 3))
    for chunk in (64,)
] + [(0, 0, 0, 0, chunk) for chunk in (128, 256)]


def tensors(model: str, bs: int, width: int, prefix: int) -> tuple:
    heads, kv_heads, dim, v_dim = MODELS[model]
    generator = torch.Generator("cuda").manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device="cuda", dtype=torch.bfloat16)

    slots = bs * prefix
    cache = random(slots + 1, kv_heads, dim)
    # MLA's values are the first dims of its keys
    v_cache = cache[..., :v_dim] if kv_heads == 1 else random(slots + 1, kv_heads, v_dim)
    k = random(bs * width, kv_heads, dim)
    v = k[..., :v_dim].contiguous() if kv_heads == 1 else random(bs * width, kv_heads, v_dim)
    columns = prefix + width
    mask = torch.zeros((bs, width, columns), dtype=torch.uint8, device="cuda")
    mask[:, :, prefix:] = torch.eye(width, dtype=torch.uint8, device="cuda")
    mask[:, :, prefix] = 1

    def steps(by: int) -> torch.Tensor:
        return torch.arange(0, bs * by + 1, by, device="cuda")

    return (
        random(bs * width, heads, dim), k, v, random(bs * width, heads, v_dim), cache, v_cache,
        steps(width), steps(prefix).int(), torch.randperm(slots, device="cuda"),
        mask.flatten(), True, steps(width * columns), width, 1.0, 1.0, dim**-0.5,
    )  # fmt: skip


def captured(call: Callable[[], object]) -> torch.cuda.CUDAGraph:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            call()
    return graph


def microseconds(graphs: list[torch.cuda.CUDAGraph]) -> list[float]:
    """Median microseconds a call of each, replayed in turns."""
    times: list[list[float]] = [[] for _ in graphs]
    for _ in range(ROUNDS):
        for graph, kept in zip(graphs, times, strict=True):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            kept.append(1e3 * start.elapsed_time(end) / CALLS)
    return [statistics.median(kept) for kept in times]


def tried_tiles(words: tuple, warm: bool) -> list[tuple[float, tuple]]:
    """(microseconds, (rows, columns, warps, stages, least chunk)) of all that fit, best first.

    A tile of zeros is the default one.
    """
    found = []
    shapes, least = tree_attention.tile_shapes, tree_attention.MIN_CHUNK
    try:
        for *tile, chunk in TILES:
            chosen = tuple(tile) if any(tile) else None
            tree_attention.tile_shapes = lambda *how, t=chosen: [t] if t else shapes(*how)
            tree_attention.MIN_CHUNK = chunk
            fits = tree_attention.verify_attention(*words)
            if fits and not warm:
                graph = captured(lambda: tree_attention.verify_attention(*words))
                found.append((microseconds([graph])[0], (*tile, chunk)))
    finally:
        tree_attention.tile_shapes, tree_attention.MIN_CHUNK = shapes, least
    return sorted(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiles", action="store_true")
    parser.add_argument("--warm", action="store_true")
    parser.add_argument("--model", type=int, choices=range(len(MODELS)), help="only this one")
    parser.add_argument("--shapes", default="0,1,2,3,4,5,6", help="of the list in this file")
    args = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}; microseconds a call")
    models = list(MODELS) if args.model is None else [list(MODELS)[args.model]]
    shapes = [SHAPES[int(i)] for i in args.shapes.split(",")]
    for model, (bs, width, prefix) in itertools.product(models, shapes):
        words = tensors(model, bs, width, prefix)
        if args.warm:
            tried_tiles(words, warm=True)
            continue
        assert tree_attention.verify_attention(*words)
        mine = words[3].clone()
        extend_attention_fwd(*words)
        error = (mine.float() - words[3].float()).abs().max().item()
        graphs = [
            captured(lambda words=words: extend_attention_fwd(*words)),
            captured(lambda words=words: tree_attention.verify_attention(*words)),
        ]
        theirs, ours = microseconds(graphs)
        text = f"{model:24} bs {bs:2} W {width:2} prefix {prefix:5}: extend {theirs:8.1f}"
        text += f"  split {ours:8.1f}  ratio {theirs / ours:5.2f}  largest difference {error:.4f}"
        print(text, flush=True)
        for time, tile in tried_tiles(words, warm=False)[:6] if args.tiles else ():
            print(f"    {time:8.1f} with {tile}", flush=True)


if __name__ == "__main__":
    main()
