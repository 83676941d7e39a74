"""DDTREE for SGLang 0.5.16: diffusion draft trees over a DFlash drafter.

A DFlash drafter gives, in one forward, a distribution for each of the next L - 1 positions. The
tree holds the B prefixes of highest probability under their product (arXiv 2604.12989); the
target verifies all of them in one forward of N = B + 1 nodes and emits the path that its own
draws take. Greedy and sampling are exact: a token is only ever emitted if the target drew it in
its true context.

    --speculative-algorithm DDTREE --speculative-draft-model-path DRAFTER
    --speculative-num-draft-tokens N --attention-backend triton

Map: plugin (entry point), algorithm (arguments), settings (environment), hooks; worker (the step),
step (its plan and buffers), sampler (draft to tree, in the draft's graph), draw (the target's
tokens), logits, penalties; topk, tree, path, attention_metadata, tree_attention (the Triton
kernels); widths (captured verify widths), budgets, policy and accept_counts (which of them a step
uses); kv_move, self_check.
"""
