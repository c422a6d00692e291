"""The VC-Attention Patch node."""

from __future__ import annotations

import comfy.model_management
from comfy_api.latest import io

from ..vc_attention.errors import ParameterError
from ..vc_attention.guard import BUDGETS
from . import history, kernels
from .apply import patched
from .compat import accepted
from .settings import BACKENDS, BITS, PROBABILITY, SMOOTHING, Settings, parse_blocks, settings


class VCAttentionPatch(io.ComfyNode):
    """MODEL -> MODEL: the same model, whose long self-attention runs on low-bit kernels."""

    @classmethod
    def define_schema(cls):
        return accepted(
            io.Schema,
            node_id="VCAttentionPatch",
            display_name="VC-Attention Patch",
            category="model_patches/attention",
            search_aliases=["vc attention", "low-bit attention", "fast attention", "8-bit attention", "sage attention"],
            description=(
                "Speeds up a video model by running its self-attention in 8 or 4 bits. Similar tokens are grouped and "
                "their average is kept exact, so that little quality is lost. Patch every model of the workflow (both "
                "experts of Wan2.2). After sampling the node shows what it did."
            ),
            inputs=[
                io.Model.Input(
                    "model", tooltip="The video model. Put this node right after the model loader or its LoRAs."
                ),
                *widgets(),
            ],
            outputs=[io.Model.Output(tooltip="The patched model. The model that came in stays as it was.")],
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def validate_inputs(cls, blocks_left_alone):
        return check_blocks(blocks_left_alone)

    @classmethod
    def execute(cls, model, enabled, **widgets):
        history.forget(cls.hidden.unique_id)
        if not enabled:
            return io.NodeOutput(model)
        return io.NodeOutput(patched(model, chosen(**widgets), cls.hidden.unique_id))


def check_blocks(text: str | None) -> bool | str:
    """True, or what is wrong with a list of blocks, before anything runs."""
    try:
        parse_blocks(text or "")  # None when another node feeds it: unknown until that node ran
    except ParameterError as error:
        return str(error)
    return True


def chosen(**widgets) -> Settings:
    """What the widgets ask for. Raises ParameterError, and KernelUnavailable where kernels are insisted on."""
    asked = settings(**widgets)
    if asked.backend == "cuda":  # refuse here, in words, rather than in the middle of sampling
        kernels.choose(asked, 128, comfy.model_management.get_torch_device())
    return asked


def _percent(level: str) -> str:
    return f"{BUDGETS[level]:.0%}"


def widgets() -> list:
    """Every widget of the patch nodes, in order."""
    return [
        accepted(
            io.Combo.Input,
            id="bits",
            display_name="bit width",
            options=list(BITS),
            default="auto",
            tooltip="Precision of the attention. 8 is safe. 4 is less exact, faster on RTX 50 and RTX PRO "
            "Blackwell, and becomes 8 where it cannot run. auto picks 4 on those cards and 8 elsewhere.",
        ),
        accepted(
            io.Float.Input,
            id="grouping_window",
            display_name="grouping window",
            default=0.25,
            min=0.0,
            max=1.0,
            step=0.05,
            display_mode=io.NumberDisplay.slider,
            tooltip="Share of the sampling, from its noisy start, during which tokens are grouped from scratch. The "
            "picture's layout forms there. It counts the whole schedule, also when two samplers share it. "
            "0.25 is right for nearly everything.",
        ),
        accepted(
            io.Int.Input,
            id="clusters",
            display_name="clusters",
            default=0,
            min=0,
            max=512,
            tooltip="How many groups of similar tokens to form. 0 chooses by the length of the video.",
        ),
        accepted(
            io.Int.Input,
            id="refresh_interval",
            display_name="refresh interval",
            default=4,
            min=1,
            max=100,
            advanced=True,
            tooltip="Groups are renewed every so many steps. Smaller follows the picture more closely and costs time.",
        ),
        accepted(
            io.Combo.Input,
            id="probability",
            display_name="probability format",
            options=list(PROBABILITY),
            default="auto",
            advanced=True,
            tooltip="How attention weights are rounded to 8 bits. expcast is the fast way, exact computes a true "
            "exponential first; both fit balanced and paper at 8 bits. auto takes what the smoothing profile wants.",
        ),
        accepted(
            io.Combo.Input,
            id="smoothing",
            display_name="smoothing profile",
            options=list(SMOOTHING),
            default="balanced",
            advanced=True,
            tooltip="balanced: best for its speed. quality: smaller error, somewhat slower. paper: exactly the "
            "published method, which stops keeping group averages after the grouping window; for comparison, without "
            "GPU kernels.",
        ),
        accepted(
            io.Int.Input,
            id="min_tokens",
            display_name="minimum tokens",
            default=4096,
            min=0,
            max=1 << 20,
            step=256,
            advanced=True,
            tooltip="Attention over fewer tokens than this keeps its full precision: short calls gain nothing.",
        ),
        accepted(
            io.String.Input,
            id="blocks_left_alone",
            display_name="blocks left alone",
            default="",
            advanced=True,
            tooltip="Blocks of the model that keep full precision, for example 0,1,38-39. Empty: those that are known "
            "to be sensitive (the last block of MiniMax H3). A number that no block has, like 999, leaves none alone.",
        ),
        accepted(
            io.Combo.Input,
            id="backend",
            display_name="backend",
            options=list(BACKENDS),
            default="auto",
            advanced=True,
            tooltip="auto uses the GPU kernels if they are built and leaves attention as it was if not. cuda insists "
            "on them. reference computes the same in slow steps on any machine, to check results.",
        ),
        accepted(
            io.Boolean.Input,
            id="enabled",
            display_name="enabled",
            default=True,
            label_on="on",
            label_off="off",
            advanced=True,
            tooltip="off passes the model on untouched, to compare with and without.",
        ),
        accepted(
            io.Combo.Input,
            id="error_budget",
            display_name="error budget",
            options=list(BUDGETS),
            default="balanced",
            optional=True,  # so that workflows from before it still run
            tooltip="How far a layer's attention may be off. A few rows of every layer are checked against exact "
            "attention while sampling; a layer that is further off computes more exactly, or as without the node. "
            f"{_percent('fast')} for fast, {_percent('balanced')} for balanced, {_percent('quality')} for quality. "
            "off checks nothing: the published method.",
        ),
    ]
