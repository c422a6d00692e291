"""The executable specification of VC-Attention, in torch, on any device.

Everything before the attention loop is exact to the bit: a kernel's codes, scales, means and permutation must equal
these. The loop itself is a definition of the result, compared within the bounds of the tests.
"""

from .attention import attention
from .grouping import group
from .operands import Operands, prepare
from .probability import expcast

__all__ = ["Operands", "attention", "expcast", "group", "prepare"]
