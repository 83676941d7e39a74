"""CT200: 8x RTX PRO 6000 Blackwell, PCIe, sm_120. Put the names of your hosts where ct200-1 stands.

A name is what ssh understands: an address, or a Host of ~/.ssh/config.
"""

CT200 = (
    ["ct200-1"],
    {
        "ssh_user": "root",
        "wanted": {
            "group": "CT200",
            "target": "hf:moonshotai/Kimi-K2.6",
            "drafter": "hf:SubSir/Kimi-K2.6-DFlash-tmp-long",
            "gpus": 8,
            "gpu_name": "NVIDIA RTX PRO 6000 Blackwell",
            "compute_capability": "12.0",
            "links": "pcie",
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
