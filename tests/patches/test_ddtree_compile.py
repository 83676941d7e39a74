"""The verify attention compiles for the cards of our groups, and its last tile fits the smallest.

Triton compiles for a card that is not there; the interpreter, which the other tests use on a CPU,
says nothing of shared memory. In a process of its own, since that choice is made once.
"""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from sglang_ddtree import tree_attention

pytestmark = pytest.mark.sglang
SHARED_KIB = {90: 227, 103: 227, 120: 99}  # CUDA programming guide: most a block may ask for
SHAPES = {"SmolLM2": (64, 0, 64, 9, 3), "Kimi K2 at TP8": (512, 64, 512, 8, 1)}
WIDTH = 16
SCRIPT = """
import json, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from sglang_ddtree import tree_attention

arch, (dim, rope, v_dim, heads, kv_heads), width, tile = json.loads(sys.argv[1])
rows, cols, warps, stages = tile
kernel = tree_attention._split_kernel
wide, wide_v = triton.next_power_of_2(dim), triton.next_power_of_2(v_dim)
values = dict(W=width, H=heads, KVH=kv_heads, D=dim, ROPE=rope, DV=v_dim, WIDE_D=wide,
              WIDE_DV=wide_v, ROWS=rows, COLS=cols, SPLITS=8, CHUNK=64, MASK=2, CAP=0.0)
types = {"kv_indptr_ptr": "*i32", "kv_indices_ptr": "*i64", "mask_ptr": "*u8",
         "mask_indptr_ptr": "*i64", "part_ptr": "*fp32", "lse_ptr": "*fp32",
         "scale": "fp32", "k_scale": "fp32", "v_scale": "fp32"}
def type_of(name):
    return types.get(name, "*bf16" if name.endswith("_ptr") else "i32")
signature = {n: "constexpr" if n in values else type_of(n) for n in kernel.arg_names}
constants = {(kernel.arg_names.index(n),): value for n, value in values.items()}
made = triton.compile(ASTSource(kernel, signature, constants), target=GPUTarget("cuda", arch, 32),
                      options={"num_warps": warps, "num_stages": stages})
print(json.dumps([made.metadata.shared, len(made.asm["cubin"])]))
"""


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("arch", SHARED_KIB)
def test_the_tile_that_fits_everywhere_compiles_and_fits(arch, shape, tmp_path):
    dim, rope, _, heads, kv_heads = SHAPES[shape]
    tile = tree_attention.tile_shapes(dim + rope, WIDTH * heads // kv_heads, 2)[-1]
    asked = json.dumps([arch, SHAPES[shape], WIDTH, tile])
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "0",
        "TRITON_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, asked], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-1000:]
    shared, size = json.loads(done.stdout.splitlines()[-1])
    assert size > 0
    assert shared <= SHARED_KIB[arch] << 10
