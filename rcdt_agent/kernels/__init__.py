"""Compiled programs for processors: `kernels.c` and `block.h`, built at installation.

Optional: without a C compiler at installation, on other devices and for other number formats,
torch's operations do the same. `RCDT_KERNELS=0` in the environment leaves them out.
"""

from rcdt_agent.kernels.acting import LastStates
from rcdt_agent.kernels.batches import runs
from rcdt_agent.kernels.block import Plan, block
from rcdt_agent.kernels.library import LEVELS, VARIABLE, Drop, Words, instruction_set, usable
from rcdt_agent.kernels.tokens import tokens

__all__ = [
    "Drop", "LEVELS", "LastStates", "Plan", "VARIABLE", "Words", "block", "instruction_set",
    "runs", "tokens", "usable",
]  # fmt: skip
