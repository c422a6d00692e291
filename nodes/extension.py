"""The list of nodes that ComfyUI asks for."""

from comfy_api.latest import ComfyExtension

from .compare import VCAttentionCompare
from .patch import VCAttentionPatch
from .patch_wrapper import VCAttentionPatchWrapper
from .report_node import VCAttentionReport
from .routes import add_routes


class VCAttentionExtension(ComfyExtension):
    async def get_node_list(self):
        add_routes()
        return [VCAttentionPatch, VCAttentionPatchWrapper, VCAttentionReport, VCAttentionCompare]
