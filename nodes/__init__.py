"""ComfyUI's side of the pack: the nodes, and how a sampling run reaches the attention library."""
