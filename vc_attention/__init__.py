"""VC-Attention: value smoothing and softmax casting for low-bit attention. Knows torch, never ComfyUI."""
