"""ComfyUI's side of the pack: the nodes, and how a sampling run reaches the attention library."""

from comfy_api.latest import ComfyExtension

from .patch import VCAttentionPatch


class VCAttentionExtension(ComfyExtension):
    async def get_node_list(self):
        return [VCAttentionPatch]
