"""The VC-Attention Patch (WanVideoWrapper) node."""

from __future__ import annotations

from comfy_api.latest import io

from . import history, patch, wrapper
from .compat import accepted


class VCAttentionPatchWrapper(io.ComfyNode):
    """WANVIDEOMODEL -> WANVIDEOMODEL: what VC-Attention Patch does, for models of ComfyUI-WanVideoWrapper."""

    @classmethod
    def define_schema(cls):
        model = io.Custom("WANVIDEOMODEL")
        return accepted(
            io.Schema,
            node_id="VCAttentionPatchWrapper",
            display_name="VC-Attention Patch (WanVideoWrapper)",
            category="model_patches/attention",
            search_aliases=["vc attention", "longcat", "wanvideo", "low-bit attention", "fast attention"],
            description=(
                "Speeds up LongCat-Video and Wan models of ComfyUI-WanVideoWrapper by running their self-attention in "
                "8 or 4 bits, as VC-Attention Patch does for ComfyUI's own models. After sampling the node shows what "
                "it did."
            ),
            inputs=[
                model.Input("model", tooltip="From WanVideoModelLoader, or from a node that follows it."),
                *patch.widgets(),
            ],
            outputs=[model.Output(tooltip="The patched model, for WanVideoSampler.")],
            hidden=[io.Hidden.unique_id],
        )

    validate_inputs = classmethod(lambda cls, blocks_left_alone: patch.check_blocks(blocks_left_alone))

    @classmethod
    def execute(cls, model, enabled, **widgets):
        history.forget(cls.hidden.unique_id)
        if not enabled:
            return io.NodeOutput(model)
        return io.NodeOutput(wrapper.patched(model, patch.chosen(**widgets), cls.hidden.unique_id))
