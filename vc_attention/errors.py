"""Errors that name the parameter, the rule, the value and the remedy."""

from __future__ import annotations


class VCAttentionError(Exception):
    """Base of every error that this package raises on purpose."""


class ParameterError(VCAttentionError, ValueError):
    """A parameter breaks a rule."""

    def __init__(self, parameter: str, rule: str, value: object, remedy: str):
        super().__init__(f"{parameter} must be {rule}, got {value!r}: {remedy}")
        self.parameter, self.rule, self.value, self.remedy = parameter, rule, value, remedy


class KernelUnavailable(VCAttentionError, RuntimeError):
    """No kernel can take this call; `reasons` says why, one sentence each."""

    def __init__(self, reasons: list[str], remedy: str = "use backend='reference' or the model's own attention"):
        super().__init__(f"no attention kernel for this call ({'; '.join(reasons)}): {remedy}")
        self.reasons = list(reasons)
