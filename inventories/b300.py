"""B300: 8x B300 SXM6, NVLink NV18, sm_103. Put the names of your hosts where b300-1 stands.

A name is what ssh understands: an address, or a Host of ~/.ssh/config.
"""

B300 = (
    ["b300-1"],
    {
        "ssh_user": "root",
        "wanted": {
            "group": "B300",
            "target": "hf:moonshotai/Kimi-K2.6",
            "drafter": "hf:SubSir/Kimi-K2.6-DFlash-tmp-long",
            "gpus": 8,
            "gpu_name": "NVIDIA B300",
            "compute_capability": "10.3",
            "links": "nvlink",
            "bench": {
                "concurrency": [1, 8, 32],
                "prompt_sets": ["code", "mathematics", "chat", "summarising"],
                "prompts_per_cell": 8,
                "max_new_tokens": 512,
                "repeats": 5,
                "quick": {"concurrency": [1], "prompt_sets": ["chat"], "repeats": 2},
            },
        },
    },
)
