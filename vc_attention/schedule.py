"""Which grouping action an attention call takes, decided from the noise level alone.

A sampling step is recognised by its sigma, never by counting calls: cond and uncond, context windows, second-order
stages and skipping caches all change the number of calls a step makes. The grouping window is a fraction of the *whole*
schedule, so two-expert models, split samplers, denoise below 1 and few-step LoRAs all mean the same thing by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from .config import Action
from .errors import ParameterError

# Actions that leave a new permutation behind.
RENEWING = (Action.GROUP, Action.ASSIGN)
# A sampler may hand over a sigma that differs from its own schedule in the last digits (sa_solver: 0.99998 for 1.0).
SIGMA_TOLERANCE = 1e-4


class AfterWindow(Enum):
    """What happens once the grouping window has passed."""

    ASSIGN = "assign"  # block means stay on, tokens are re-assigned to the kept centroids at every refresh
    REUSE = "reuse"  # block means stay on, the last permutation is kept
    PLAIN = "plain"  # the paper: block means off, the last permutation is kept


@dataclass(frozen=True)
class Schedule:
    """The grouping schedule of one patched model.

    Args:
        window: fraction of the whole sampling schedule in which tokens are grouped from scratch, 0 to 1.
        refresh: steps between two renewals of a layer's grouping, at least 1.
        after_window: what happens past the window.

    Raises:
        ParameterError: a value outside its range.
    """

    window: float = 0.25
    refresh: int = 4
    after_window: AfterWindow = AfterWindow.ASSIGN

    def __post_init__(self) -> None:
        if type(self.window) not in (int, float) or not 0.0 <= self.window <= 1.0:
            raise ParameterError("window", "a fraction of the schedule, 0 to 1", self.window, "try 0.25")
        if type(self.refresh) is not int or self.refresh < 1:
            raise ParameterError("refresh", "a whole number of steps, at least 1", self.refresh, "try 4")

    def decide(self, step: Step, last: int | None) -> Action:
        """The action of a call in `step` by a layer whose grouping was last renewed at step index `last`.

        `last` is None for a cold call (no grouping yet), which always groups: the low-noise expert of a two-expert
        model starts past the window and has nothing to reuse. The distance is absolute because a sampler may go back
        to a higher sigma (restarts), and "at least" because a cache may skip the very step that was due.
        """
        if last is None:
            return Action.GROUP
        due = abs(step.index - last) >= self.refresh
        if step.in_window:
            return Action.GROUP if due else Action.REUSE
        if self.after_window is AfterWindow.PLAIN:
            return Action.PLAIN
        return Action.ASSIGN if due and self.after_window is AfterWindow.ASSIGN else Action.REUSE


@dataclass(frozen=True)
class Step:
    """Where a model call lies: `index` in its sampler's own list of sigmas, and whether the grouping window holds."""

    index: int
    in_window: bool


def step_index(sigma: float, sigmas: Sequence[float]) -> int:
    """Index of the step that `sigma` belongs to, in the n + 1 sigmas of the sampler that is running.

    It is the last i with sigmas[i] >= sigma, clamped to 0..n-1 (added noise may exceed sigmas[0]; heun ends at
    sigmas[n]). A second evaluation between two sigmas (dpm_2, dpmpp_2s) belongs to the step it started from; one at
    exactly the next sigma (heun) belongs to the next step, whose first evaluation repeats that very noise level. Either
    way one index covers one noise level, so a refresh happens once; also where the sigmas rise (un-sampling), whose
    indices count down.
    """
    threshold = sigma * (1.0 - SIGMA_TOLERANCE)
    reached = sum(1 for value in sigmas if value >= threshold)
    return max(0, min(reached - 1, len(sigmas) - 2))


def locate(sigma: float, sigmas: Sequence[float], window_sigma: float) -> Step:
    """The step of a model call at `sigma`; `window_sigma` is the model's sigma at the end of the grouping window.

    The comparison is strict: with n steps and a window of 1/4, steps 0 .. ceil(n/4) - 1 are inside.
    """
    return Step(step_index(sigma, sigmas), sigma > window_sigma * (1.0 + SIGMA_TOLERANCE))
