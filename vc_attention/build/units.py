"""The one table of compile units: a source file, the targets it is written for, the kernels it exports.

A unit is one translation unit of `csrc/`, compiled once per target into one cubin. A new architecture adds a folder
there and a row here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from . import targets

# Version of the agreement between Python and the kernels beyond what the sources say (names, stamps, launchers).
INTERFACE = 1

# Said to both compilers for every unit; the report of registers and spills is kept in the stamp.
COMMON = ("--std=c++17", "--ptxas-options=-v")

# Preparation is specified to the bit: no contraction into FMA, IEEE division, denormals kept.
EXACT = ("--fmad=false",)


@dataclass(frozen=True)
class Unit:
    """One row: `source` is relative to csrc/, `extra` options are spelled as both nvcc and NVRTC accept them."""

    name: str
    source: str
    arches: tuple[str, ...]
    kernels: tuple[str, ...]
    extra: tuple[str, ...] = ()

    @property
    def options(self) -> tuple[str, ...]:
        """All that is said to the compiler beside the target."""
        return (*COMMON, *self.extra)

    def arch_for(self, gpu: tuple[int, int]) -> str | None:
        """The target of this unit that a GPU of capability `gpu` runs, or None."""
        return targets.best(self.arches, gpu)


_TYPES = ("bf16", "fp16")
_TYPES_AND_DIMS = tuple(f"{dtype}_d{head_dim}" for dtype in _TYPES for head_dim in (128, 64))


def _names(stages: str, variants: Iterable[str]) -> tuple[str, ...]:
    """vc_<stage>_<variant> for every stage of a list in words and every variant."""
    return tuple(f"vc_{stage}_{variant}" for stage in stages.split() for variant in variants)


def _attention_sm90(probability: str, references: str) -> Unit:
    """One way to write probabilities (`Numerics.probability`), each with and without block means."""
    names = (
        f"vc_attention_sm90_d{head_dim}_{probability}_{reference}_{mean}"
        for head_dim in (128, 64)
        for reference in references.split()
        for mean in ("mean", "plain")
    )
    return Unit(f"attention_sm90_{probability}", f"sm90/attention_{probability}.cu", ("90a",), tuple(names))


def attention_mma(formats: str, reference: str, arches: tuple[str, ...], folder: str = "mma") -> Unit:
    """Kernels of csrc/mma for one choice of operand formats, each with and without block means."""
    names = (
        f"vc_attention_mma_d{head_dim}_{formats}_{reference}_{mean}"
        for head_dim in (128, 64)
        for mean in ("mean", "plain")
    )
    source = f"{folder}/attention_{formats.removesuffix('_emulated')}.cu"
    return Unit(f"attention_mma_{formats}", source, arches, tuple(names))


UNITS = {
    unit.name: unit
    for unit in (
        Unit("selftest", "smxx/selftest.cu", targets.ANY_ARCH, ("vc_selftest",)),
        Unit(
            "group",
            "smxx/group.cu",
            targets.ANY_ARCH,
            (
                *_names("kmeans_moments kmeans_assign kmeans_update", _TYPES_AND_DIMS),
                *_names("kmeans_init", _TYPES),
                *_names("kmeans_chain", ("d128", "d64")),
                *_names("sort", ("offsets", "scatter")),
            ),
            EXACT,
        ),
        Unit(
            "prepare",
            "smxx/prepare.cu",
            targets.ANY_ARCH,
            (
                *_names("sample_sums prepare_q prepare_k prepare_k_step v_moments v_e4m3 v_int8", _TYPES_AND_DIMS),
                "vc_channel_stats",
            ),
            EXACT,
        ),
        Unit(
            "prepare_nvfp4",
            "smxx/prepare_nvfp4.cu",
            targets.ANY_ARCH,
            (*_names("q_amax prepare_q_nvfp4 prepare_k_nvfp4 v_nvfp4", _TYPES_AND_DIMS), "vc_q_center"),
            EXACT,
        ),
        _attention_sm90("expcast", "tile running"),
        _attention_sm90("exact", "tile running"),
        _attention_sm90("u8", "tile"),
        attention_mma("u8", "tile", ("80", "89", "120a")),
        attention_mma("expcast", "tile", ("89", "120a")),
        attention_mma("nvfp4", "running", ("120a",)),
        attention_mma("int8_nvfp4", "running", ("120a",)),
        Unit("mma_selftest", "mma/selftest.cu", ("120a",), ("vc_mma_selftest",)),
    )
}
