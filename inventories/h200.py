"""H200: one or two H200 (sm_90, NV18), the machine itself; a small model, for our own runs.

The engine uses the packages of a Python on the host (`stack: system`): see docs/gpu-hosts.md.
"""

H200 = (
    ["@local"],
    {
        "wanted": {
            "group": "H200",
            "engine": "sglang",
            "target": "path:/opt/models/smollm2-135m",
            "drafter": "path:/opt/models/smollm2-135m-dflash-b16",
            "gpus": [1, 2],
            "gpu_name": "NVIDIA H200",
            "compute_capability": "9.0",
            "links": "nvlink",
            "parallelism": "TP1",
            "attention_backend": "triton",
            "budgets": [7, 15, 31],
            "stack": "system",
            "stack_from": "/usr/bin/python3",
            "hub": "offline",
            "bench": {
                "concurrency": [1, 8],
                "prompts_per_cell": 8,
                "max_new_tokens": 128,
                "repeats": 3,
            },
        },
    },
)
