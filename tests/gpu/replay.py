"""Accept lengths of the fp32 target and drafter on the texts that an engine wrote.

    python tests/gpu/replay.py --target HF_DIR --drafter DIR ANSWERS.json [--table TABLE.json]

An engine's bf16 texts part from fp32's at near ties, and another text has another accept length. So
both models are teacher-forced over the engine's own text, and the verify steps are counted that a
plain best-first heap needs for it: what is left to differ is the drafting. ANSWERS as check.py and
table.py write it: {"prompts": [ids, ...], "BUDGET": [[output ids, verify steps], ...], ...}, where
budget 0 is the chain; other keys are passed over. Prints a line a budget.

With the rows of table.py also what each budget gains over DFLASH on one and the same text: its
accept length over the chain's, by fp32, on each arm's texts, times the ratio of the measured steps.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from engines import step_ms
from judge import fp32

sys.path.append(str(Path(__file__).resolve().parents[2] / "files"))

from refserver.config import DrafterConfig
from refserver.safetensors_file import read_checkpoint
from refserver.tree import best_first, chain, walk

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CANDIDATES = 64  # a position; a heap of B nodes looks at no more than B of them
ANCHORS = 32  # blocks drafted at once: 32 x 15 x 49152 logits are 94 MB

Blocks = tuple[torch.Tensor, torch.Tensor]  # log-probabilities, token ids: [anchors, L - 1, K]


class Reference:
    """The target in fp32 with its DFlash drafter, on the GPU if there is one."""

    def __init__(self, target: str, drafter: str) -> None:
        self.model = fp32(target)
        self.drafter = Drafter(Path(drafter))
        self._blocks: dict[tuple[int, ...], Blocks] = {}

    @torch.inference_mode()
    def next_logits(self, rows: Sequence[Sequence[int]]) -> torch.Tensor:
        """The target's logits [rows, vocab] behind each row of token ids, all of one length."""
        parts = torch.tensor(rows, device=DEVICE).split(64)
        return torch.cat([self.model(ids, logits_to_keep=1).logits[:, -1] for ids in parts]).cpu()

    def accept_length(self, budget: int, prompts, outputs) -> float:
        """Pooled as `engines.accept_length` does: tokens behind the first, over verify steps."""
        texts = zip(prompts, outputs, strict=True)
        steps = sum(self.steps(budget, prompt, output) for prompt, output in texts)
        return sum(len(output) - 1 for output in outputs) / steps

    def steps(self, budget: int, prompt: Sequence[int], output: Sequence[int]) -> int:
        """Verify steps for `output`: the prefill gives its first token, its end cuts the last."""
        ids, at, count = (*prompt, *output), len(prompt), 0
        log_probs, tokens = self.blocks(ids)
        while at < len(ids) - 1:
            if budget:
                block = (part[at, :, :budget].tolist() for part in (log_probs, tokens))
                tree = best_first(ids[at], *block, budget)
            else:
                tree = chain(ids[at], tokens[at, :, 0].tolist())
            following = (*ids[at + 1 : at + self.drafter.shape.block_size], -1)
            path, _ = walk(tree, lambda node, t=tree, f=following: f[t.depths[node]])
            at += len(path)  # accepted drafts, and the bonus token for the root
            count += 1
        return count

    @torch.inference_mode()
    def blocks(self, ids: tuple[int, ...]) -> Blocks:
        """The drafter's best tokens behind each position but the last; kept for other budgets."""
        if ids not in self._blocks:
            text = torch.tensor(ids, device=DEVICE)
            states = self.model(text[None], output_hidden_states=True).hidden_states
            # states[0] is the embedding, so a layer's output stands one further
            layers = self.drafter.shape.target_layer_ids
            features = torch.cat([states[i + 1][0] for i in layers], -1)
            found = []
            for anchors in torch.arange(len(ids) - 1, device=DEVICE).split(ANCHORS):
                hidden = self.drafter(self.model.get_input_embeddings(), features, text, anchors)
                logits = self.model.get_output_embeddings()(hidden)
                values, tokens = logits.log_softmax(-1).topk(CANDIDATES)
                found.append((values.cpu(), tokens.cpu()))
            log_probs, tokens = (torch.cat(parts) for parts in zip(*found, strict=True))
            self._blocks[ids] = log_probs, tokens
        return self._blocks[ids]


class Drafter:
    """A DFlash drafter in fp32; as refserver's, but for many anchors of one text at once."""

    def __init__(self, folder: Path) -> None:
        self.shape = DrafterConfig.from_json(json.loads((folder / "config.json").read_text()))
        weights = read_checkpoint(folder)
        self.weights = {name: torch.tensor(w, device=DEVICE) for name, w in weights.items()}

    def __call__(self, embedding, features: torch.Tensor, text: torch.Tensor, anchors):
        """Hidden states [P, L - 1, H] of the blocks behind P anchors, positions in `text` [T].

        An anchor's block sees itself and `features` [T, F * H] of the tokens before the anchor:
        those that are committed when it is drafted.
        """
        shape, places = self.shape, torch.arange(len(text), device=DEVICE)
        context = self._norm(self._linear(features, "fc"), "hidden_norm")
        own = (anchors[:, None] + torch.arange(shape.block_size, device=DEVICE))[:, None]
        sees = F.pad(places < anchors[:, None], (0, shape.block_size), value=True)[:, None, None]
        tokens = torch.full((len(anchors), shape.block_size), shape.mask_token_id, device=DEVICE)
        tokens[:, 0] = text[anchors]
        x = embedding(tokens)
        for layer in (f"layers.{i}" for i in range(shape.num_layers)):
            h = self._norm(x, f"{layer}.input_layernorm")
            q = self._rotated(h, own, f"{layer}.self_attn.q", shape.num_heads)
            before, block = (self._keys_values(*of, layer) for of in ((context, places), (h, own)))
            k, v = (
                torch.cat([old.expand(len(anchors), -1, -1, -1), new], 2)
                for old, new in zip(before, block, strict=True)
            )
            mixed = F.scaled_dot_product_attention(q, k, v, sees, enable_gqa=True)
            x = x + self._linear(mixed.transpose(1, 2).flatten(2), f"{layer}.self_attn.o_proj")
            h = self._norm(x, f"{layer}.post_attention_layernorm")
            gate, up = (self._linear(h, f"{layer}.mlp.{name}_proj") for name in ("gate", "up"))
            x = x + self._linear(F.silu(gate) * up, f"{layer}.mlp.down_proj")
        return self._norm(x[:, 1:], "norm")

    def _linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x @ self.weights[f"{name}.weight"].T

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return F.rms_norm(x, x.shape[-1:], self.weights[f"{name}.weight"], self.shape.rms_norm_eps)

    def _heads(self, x: torch.Tensor, count: int) -> torch.Tensor:
        return x.unflatten(-1, (count, self.shape.head_dim)).transpose(-2, -3)

    def _rotated(self, x: torch.Tensor, positions: torch.Tensor, name: str, count: int):
        """q or k of x [..., n, H] by head, [..., count, n, dim]: normed, turned by position."""
        x = self._norm(self._heads(self._linear(x, f"{name}_proj"), count), f"{name}_norm")
        pairs = torch.arange(0, self.shape.head_dim, 2, device=DEVICE) / self.shape.head_dim
        angles = positions[..., None] * self.shape.rope_theta**-pairs
        cos, sin, (a, b) = angles.cos(), angles.sin(), x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def _keys_values(self, x: torch.Tensor, positions: torch.Tensor, layer: str):
        kv_heads = self.shape.num_kv_heads
        values = self._heads(self._linear(x, f"{layer}.self_attn.v_proj"), kv_heads)
        return self._rotated(x, positions, f"{layer}.self_attn.k", kv_heads), values


def gains(reference: Reference, answers: dict, rows: list[dict]) -> None:
    """Print tree over chain, mean (least..most) over the arms' texts, and the gain over DFLASH."""
    arms = [arm for arm in answers if arm in ("ar", "dflash") or arm.isdigit()]
    texts = [[output for output, _ in answers[arm]] for arm in arms]

    def accept(budget: int) -> list[float]:
        return [reference.accept_length(budget, answers["prompts"], text) for text in texts]

    def steps(arm: str, many: int) -> float:
        own = [row for row in rows if (row["arm"], row["concurrency"]) == (arm, many)]
        return statistics.median(map(step_ms, own))

    chain = accept(0)
    concurrencies = sorted({row["concurrency"] for row in rows})
    print(f"{'B':>4} {'tree/chain':>19}", *(f"{f'x dflash at {c}':>14}" for c in concurrencies))
    for budget in filter(str.isdigit, arms):
        ratios = [a / b for a, b in zip(accept(int(budget)), chain, strict=True)]
        mean = statistics.mean(ratios)
        ours = [mean * steps("dflash", c) / steps(f"ddtree-{budget}", c) for c in concurrencies]
        spread = f"{mean:.3f} ({min(ratios):.3f}..{max(ratios):.3f})"
        print(f"{budget:>4} {spread:>19}", *(f"{gain:14.3f}" for gain in ours), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", required=True)
    parser.add_argument("--drafter", required=True)
    parser.add_argument("answers", type=Path)
    parser.add_argument("--table", type=Path, help="table.json: gains on one and the same text")
    args = parser.parse_args()
    answers = json.loads(args.answers.read_text())
    reference = Reference(args.target, args.drafter)
    print(f"{'B':>4} {'engine':>7} {'fp32':>7} {'ratio':>6}")
    for budget in filter(str.isdigit, answers):
        outputs = [output for output, _ in answers[budget]]
        steps = sum(steps for _, steps in answers[budget])
        engine = sum(len(output) - 1 for output in outputs) / steps
        fp32_length = reference.accept_length(int(budget), answers["prompts"], outputs)
        print(
            f"{budget:>4} {engine:7.3f} {fp32_length:7.3f} {engine / fp32_length:6.3f}", flush=True
        )
    if args.table:
        gains(reference, answers, json.loads(args.table.read_text()))


if __name__ == "__main__":
    main()
