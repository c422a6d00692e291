"""What the trained model's own q, k and v look like, layer by layer: the paper's figures 3 and 4 measured on it.

`python -m tests.trained.anatomy` prints it for one clip of 1,280 tokens; the suite has it for four of 4,096.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import torch

from tests.reference.fidelity import exact_attention, relative_error
from tools.tiny_video.scenes import SIZE
from vc_attention import reference
from vc_attention.config import PROFILES, Action, Numerics
from vc_attention.reference.operands import permute

from . import tables
from .clips import Model, rounded

BLOCK = 128
PIXELS_PER_TOKEN = 16
CUBE = (2, 8, 8)
AT_STEPS = (0, 4, 10, 18)
QUERIES = 512
GROUPED_BY = {"label": "paper-8bit", "chain": "balanced", "none": "sage2-like"}  # a profile that orders so
# One error at a time: INT8 scores after Hadamard, or E4M3 values as they come, everything else in fp32.
ALONE = dict(
    pv="none", qk="none", probability="none", cluster_order="none", mean="none", p_scale="running", balance_qk=False,
    sort_keys=False,
)  # fmt: skip
SCORES_ONLY = Numerics(**ALONE | dict(qk="int8", q_granularity="warp", k_granularity="warp"))
VALUES_ONLY = Numerics(**ALONE | dict(pv="e4m3"))


# What the node runs, without grouping and means.
PLAIN = {
    f"{name}, no V-Smooth": replace(PROFILES[name], cluster_order="none", mean="none")
    for name in ("balanced", "quality", "4bit", "int8-nvfp4")
}


def measure(model: Model, clips: int, frames: int, profiles: dict[str, Numerics]) -> list[dict]:
    """One record a layer and step: energy shares of block means, the values' share of the squared error, and the error
    of every profile in percent."""
    records, calls, at = [], defaultdict(dict), [0]

    def on_step(index, sigma):
        at[0] = index

    def recording(layer):
        def attention(q, k, v):
            if at[0] in AT_STEPS:
                calls[at[0]][layer] = tuple(x[:clips].bfloat16() for x in (q, k, v))
            return rounded(layer)(q, k, v)

        return attention

    recording.on_step = on_step
    model.latents(clips, frames, recording)
    side = SIZE // PIXELS_PER_TOKEN
    for step, layers in calls.items():
        for layer, qkv in layers.items():
            records.append({"step": step, "layer": layer, **_call(*qkv, (frames, side, side), profiles)})
    return records


def _call(q, k, v, grid, profiles) -> dict:
    rows = torch.randperm(q.shape[-2], generator=torch.Generator().manual_seed(0))[:QUERIES].to(q.device)
    exact = exact_attention(q[:, :, rows], k, v)
    groupings = {name: reference.group(v, PROFILES[name], Action.GROUP) for name in GROUPED_BY.values()}

    def error(numerics, grouping=None) -> float:
        perm = None if grouping is None else grouping.perm
        operands = reference.prepare(q, k, v, numerics, perm, numerics.mean != "none")
        return relative_error(reference.attention(operands, numerics, rows=rows), exact).mean().item()

    scores, values = error(SCORES_ONLY), error(VALUES_ONLY)
    return {
        "share_sequence": energy_share(v),
        "share_cube": energy_share(v[:, :, cubes(grid).to(v.device)]),
        "share_sorted_paper": energy_share(permute(v.float(), groupings["paper-8bit"].perm)),
        "share_sorted_balanced": energy_share(permute(v.float(), groupings["balanced"].perm)),
        "values_share_of_error": values**2 / (values**2 + scores**2),
        "errors": {
            name: error(numerics, groupings[GROUPED_BY[numerics.cluster_order]]) for name, numerics in profiles.items()
        },
    }


def energy_share(v: torch.Tensor) -> float:
    """Share of the energy of blocks of 128 rows that their means carry (Eq. 5), averaged over blocks and heads."""
    blocks = v[..., : v.shape[-2] // BLOCK * BLOCK, :].float().unflatten(-2, (-1, BLOCK))
    energy = blocks.square().sum((-1, -2)).clamp(min=1e-12)
    return (BLOCK * blocks.mean(-2).square().sum(-1) / energy).mean().item()


def cubes(grid: tuple[int, int, int]) -> torch.Tensor:
    """The order of tokens by cubes of 2 x 8 x 8 (the last ones are flatter where the grid ends)."""
    places = torch.cartesian_prod(*(torch.arange(n) for n in grid))
    key = torch.zeros(len(places), dtype=torch.int64)
    for part in (places // torch.tensor(CUBE), places % torch.tensor(CUBE)):
        for axis in range(3):
            key = key * 64 + part[:, axis]
    return key.argsort()


def main() -> None:
    records = measure(Model("cpu"), 1, 5, PROFILES | PLAIN)
    print(tables.errors_by_layer(records), tables.anatomy(records), sep="\n")


if __name__ == "__main__":
    main()
