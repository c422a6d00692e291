"""The list of nodes that ComfyUI asks for."""

from comfy_api.latest import ComfyExtension

from .compare import VCAttentionCompare
from .patch import VCAttentionPatch


class VCAttentionExtension(ComfyExtension):
    async def get_node_list(self):
        return [VCAttentionPatch, VCAttentionCompare]
