"""A small trained video model in Wan's checkpoint format: its synthetic clips, its two networks, their training."""

from pathlib import Path

WEIGHTS = Path(__file__).parent / "weights"
