"""Everything that changes a byte of the result, and the named settings.

`Numerics` is pure data: the reference, the kernels and the benchmarks all read the same object. This module imports
nothing, so that a node can list profiles without loading torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from .errors import ParameterError

if TYPE_CHECKING:
    import torch


class Action(Enum):
    """What one attention call does about grouping (section 3.4 of the paper)."""

    GROUP = "group"  # k-means from scratch, new permutation, block means on
    ASSIGN = "assign"  # kept centroids, new permutation, block means on
    REUSE = "reuse"  # kept permutation, block means on
    PLAIN = "plain"  # kept permutation if there is one, block means off


@dataclass(frozen=True)
class Grouping:
    """What a grouping call leaves for later calls. All tensors live on the device of the values.

    centroids  int8  [B, H, C, D]  cluster centres in steps
    step       fp32  [B, H]        int8 steps per unit of v, 127 / (8 rms); 0 for all-zero values
    rank       int32 [B, H, C]     position of each cluster in the chain
    perm       int32 [B, H, Nk]    perm[i] is the token at place i (Eq. 3)
    """

    centroids: torch.Tensor
    step: torch.Tensor
    rank: torch.Tensor
    perm: torch.Tensor

    @property
    def nbytes(self) -> int:
        """Bytes held on the device."""
        return sum(t.numel() * t.element_size() for t in (self.centroids, self.step, self.rank, self.perm))


CHOICES = {
    "qk": ("int8", "e4m3", "nvfp4", "none"),
    "pv": ("e4m3", "int8", "nvfp4", "none"),
    "probability": ("expcast", "exact", "u8", "nvfp4", "none"),
    "p_scale": ("tile", "running"),
    "row_sum": ("exact", "decoded"),
    "smooth_q": ("none", "block", "head"),
    "q_granularity": ("token", "warp", "block", "head"),
    "k_granularity": ("thread", "warp", "block"),
    "cluster_order": ("chain", "label", "none"),
    "mean": ("corrected", "plain", "none"),
}
P_FORMATS = {
    "e4m3": ("expcast", "exact", "none"),
    "int8": ("u8", "none"),
    "nvfp4": ("nvfp4", "none"),
    "none": ("none",),
}
LIMITS = {
    "clusters": (0, 512),
    "tokens_per_cluster": (1, 65536),
    "iterations": (1, 64),
    "sample_stride": (1, 64),
    "k_mean_blocks": (0, 65536),
}
SWITCHES = ("smooth_k", "balance_qk", "hadamard", "sort_keys", "four_over_six")


@dataclass(frozen=True)
class Numerics:
    """One numeric setting of the whole pipeline; the defaults are the `balanced` profile.

    qk                  operand format of Q K^T; "none" leaves fp32
    pv                  operand format of P V
    probability         "expcast" Eq. 7; "exact" fp32 exponential rounded to E4M3; "u8" for INT8 values; "nvfp4"
    p_scale             "tile": every key tile is encoded against its own row maximum; "running": against the maximum
                        so far, as Eq. 1
    row_sum             "exact" sums exponentials as Eq. 6, "decoded" what the codes mean; ExpCast, which has no
                        exponential, always decodes
    q_granularity       query rows that share a scale: token 1, warp 32, block 128, head all
    k_granularity       keys that share a scale: thread 32 (strided, see csrc/README.md), warp 64, block 128
    smooth_k            subtract the channel mean of K
    smooth_q            "block" subtracts the mean of each 128 queries and restores it in the scores; "head" that of all
                        queries, and the mean of each 128 keys from K (NVFP4 scores; see reference/score_means.py)
    k_mean_blocks       at most about this many blocks of 128 tokens are read for means and balance of Q and K; 0: all
    balance_qk          scale every channel of Q by a power of two and K by its inverse, so that both spread alike
    hadamard            rotate Q and K
    sort_keys           order the keys inside each tile of 128 by size, so that those that share a scale are alike
    cluster_order       order of the k-means clusters: nearest-neighbour "chain", "label" as Eq. 3; "none": no grouping
    clusters            number of clusters; 0: one per `tokens_per_cluster` keys, within 8..512
    iterations          Lloyd iterations
    sample_stride       iterations see every n-th token
    mean                block means of V (Eq. 4): "corrected" absorbs the mean rounding error of the residual in fp32,
                        "plain" is rounded to bf16, "none" quantizes V itself
    four_over_six       NVFP4 chooses amax/6 or amax/4 for each group of 16 by squared error
    """

    qk: str = "int8"
    pv: str = "e4m3"
    probability: str = "expcast"
    p_scale: str = "tile"
    row_sum: str = "exact"
    q_granularity: str = "token"
    k_granularity: str = "thread"
    smooth_k: bool = True
    k_mean_blocks: int = 64
    smooth_q: str = "none"
    balance_qk: bool = True
    hadamard: bool = True
    sort_keys: bool = True
    cluster_order: str = "chain"
    clusters: int = 0
    tokens_per_cluster: int = 96
    iterations: int = 4
    sample_stride: int = 4
    mean: str = "corrected"
    four_over_six: bool = False

    def __post_init__(self):
        for name, choices in CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                raise ParameterError(name, f"one of {', '.join(choices)}", value, "choose one of these")
        for name, (low, high) in LIMITS.items():
            value = getattr(self, name)
            if type(value) is not int or not low <= value <= high:
                raise ParameterError(name, f"an integer in {low}..{high}", value, "choose a value in this range")
        for name in SWITCHES:
            if type(getattr(self, name)) is not bool:
                raise ParameterError(name, "True or False", getattr(self, name), "choose one of these")
        if self.probability not in P_FORMATS[self.pv]:
            allowed = " or ".join(P_FORMATS[self.pv])
            raise ParameterError(
                "probability", f"{allowed} when pv is {self.pv}", self.probability, "change one of them"
            )
        for name, needed in (("p_scale", "tile"), ("row_sum", "exact")):
            if self.probability == "u8" and getattr(self, name) != needed:
                raise ParameterError(
                    name, f"{needed} when probability is u8", getattr(self, name), "255 levels need it"
                )
        for name, needed in (("qk", "nvfp4"), ("q_granularity", "head"), ("k_granularity", "block")):
            if self.smooth_q == "head" and getattr(self, name) != needed:
                raise ParameterError(
                    name, f"{needed} when smooth_q is head", getattr(self, name), "the means need common scales"
                )

    @property
    def lane_keys(self) -> int:
        """Keys of which one thread of a kernel holds the probabilities in one register: 8 of 4 bits, 4 of 8 bits."""
        return 8 if self.pv == "nvfp4" else 4

    @property
    def half_sums(self) -> bool:
        """Whether probabilities end at 112 and E4M3 values at 2.25, so that kernels may sum 256 products in fp16."""
        return (self.probability, self.p_scale) == ("expcast", "tile")


_PAPER = dict(
    p_scale="running",
    q_granularity="block",
    k_granularity="block",
    k_mean_blocks=0,
    balance_qk=False,
    sort_keys=False,
    cluster_order="label",
    tokens_per_cluster=256,
    sample_stride=1,
    mean="plain",
)
_BASELINE = dict(
    p_scale="running", k_mean_blocks=0, balance_qk=False, sort_keys=False, cluster_order="none", mean="none"
)

_NVFP4 = dict(pv="nvfp4", probability="nvfp4")
_BEST_NVFP4 = dict(p_scale="running", row_sum="decoded", four_over_six=True)

PROFILES: dict[str, Numerics] = {
    # What we run.
    "balanced": Numerics(),
    "quality": Numerics(pv="int8", probability="u8"),
    "4bit": Numerics(
        **_NVFP4,
        **_BEST_NVFP4,
        qk="nvfp4",
        smooth_q="head",
        q_granularity="head",
        k_granularity="block",
        balance_qk=False,
        sort_keys=False,
    ),
    "int8-nvfp4": Numerics(**_NVFP4, **_BEST_NVFP4),
    # The paper, to the letter.
    "paper-8bit": Numerics(**_PAPER),
    "paper-4bit": Numerics(qk="nvfp4", **_NVFP4, smooth_q="block", **_PAPER),
    # Baselines, for comparison only.
    "fp8-naive": Numerics(
        qk="e4m3",
        probability="exact",
        q_granularity="block",
        k_granularity="block",
        smooth_k=False,
        hadamard=False,
        **_BASELINE,
    ),
    "sage2-like": Numerics(
        probability="exact", q_granularity="warp", k_granularity="warp", hadamard=False, **_BASELINE
    ),
    "sage3-like": Numerics(qk="nvfp4", **_NVFP4, smooth_q="block", hadamard=False, **_BASELINE),
    "unquantized": Numerics(qk="none", pv="none", probability="none"),
}


def profile(name: str) -> Numerics:
    """The named setting; raises ParameterError for an unknown name."""
    if name not in PROFILES:
        raise ParameterError("profile", f"one of {', '.join(PROFILES)}", name, "choose one of these")
    return PROFILES[name]
