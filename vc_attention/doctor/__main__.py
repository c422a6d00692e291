"""The command line. Runs as `python -m vc_attention.doctor` in the pack's folder, or as `python <this folder>`.

Embedded Pythons leave the current folder out of sys.path, so the second form works where the first does not.
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from vc_attention.doctor.cli import main

    sys.exit(main(sys.argv[1:]))
