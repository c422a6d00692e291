"""Compiling the kernels: what `install.py` runs.

`units`, `targets`, `source` and `cache` are plain data and files, and `vc_attention.launch` reads them at run time.
Everything that starts a process (`toolchain`, `ninja`, `cli`) is reached from `install.py` alone, never from a node.
"""
