"""Compile the kernels for the GPUs of this machine: ComfyUI-Manager runs this, and so can you (`install.py --help`).

Exits 0 also where there is no GPU or no compiler: the pack then loads and uses the model's own attention.
"""

import sys
from pathlib import Path

# Embedded Pythons leave the script's folder out of sys.path.
sys.path.insert(0, str(Path(__file__).resolve().parent))

if __name__ == "__main__":
    from vc_attention.build.cli import main

    sys.exit(main(sys.argv[1:]))
