"""Complete calls and the kernel alone, beside torch's SDPA and every other attention that can be imported here."""

from __future__ import annotations

from tests.bench import peers, preparation
from tests.bench.accuracy import Judge
from tests.bench.measure import Subject, measure
from tests.bench.shapes import Shape, tensors
from vc_attention import attention, dispatch, prepare
from vc_attention.config import PROFILES, Action, Numerics

ACTIONS = {"balanced": tuple(Action), "quality": (Action.REUSE,)}
BY_REFERENCE = ("paper-8bit", "sage2-like")
PROBABILITIES = {PROFILES[name].probability for name in ACTIONS}
HERE = [spec for spec in dispatch.KERNELS if spec.arch == "sm90" and spec.probability in PROBABILITIES]
UNITS = (*preparation.UNITS, *sorted({spec.unit for spec in HERE}))
BASELINES = tuple(peers.PEERS)
NOTES = [
    "Errors are against fp64 attention of the same inputs: 1,024 query rows of the first and the last head, of all "
    "three heads of the generator (those of `python -m tests.reference.fidelity`).",
    "`by reference`: the arithmetic of methods without a kernel here, computed by vc_attention/reference, not timed.",
    "`kernel` starts from prepared operands; `call` is complete, from q, k, v to the output. In a call `reuse` keeps "
    "the permutation, `assign` renews it, `group` makes it from nothing; `plain` has block means off.",
]


def ours(shape: Shape, q, k, v, profile: str) -> list[Subject]:
    """The kernel alone, with and without block means, and complete calls of one profile."""
    numerics: Numerics = PROFILES[profile]
    grouping = prepare.group(v, numerics, Action.GROUP)
    spec = attention.kernel_for(q, k, numerics, "cuda")
    operands = {
        means: prepare.prepare(q, k, v, numerics, grouping.perm, means, spec.block_n, spec.packed)
        for means in (True, False)
    }

    def call(action: Action):
        return lambda: attention.attend(
            q, k, v, numerics=numerics, action=action, grouping=grouping if action is not Action.GROUP else None,
            backend="cuda",
        )[0]  # fmt: skip

    def kernel(means: bool):
        return lambda: dispatch.run(operands[means], numerics, q.dtype)

    kernels = {f"kernel, {profile}": kernel(True), f"kernel, {profile}, plain": kernel(False)}
    calls = {f"call, {profile}, {action.value}": call(action) for action in ACTIONS[profile]}
    return [Subject(name, call, flops=shape.flops) for name, call in (kernels | calls).items()]


def share(rows: list[dict], shape: Shape, profile: str = "balanced") -> str:
    """What grouping and preparation take of the attention, averaged over the default schedule."""
    ms = {row["name"]: row["ms"]["median"] for row in rows}
    taken = [ms[f"call, {profile}, {action.value}"] for action in preparation.actions()]
    mean, kernel = sum(taken) / len(taken), ms[f"kernel, {profile}"]
    text = f"{shape}, {profile}: a step takes {mean:.2f} ms on average over {len(taken)} steps of the default schedule"
    return f"{text}, {100 * (mean - kernel) / mean:.1f}% of it before and after the kernel"


def run(shape: Shape, seconds: float) -> tuple[list[dict], list[str]]:
    q, k, v = tensors(shape)
    judge = Judge(q, k, v)
    others, absent = peers.available(q, k, v)
    table = [Subject(name, call, flops=shape.flops) for name, call in others.items()]
    for profile in ACTIONS:
        table += ours(shape, q, k, v, profile)
    for subject in table:
        subject.judge = judge
    measure(table, seconds)
    rows = [subject.row(str(shape)) for subject in table]
    note = share(rows, shape)
    for name in BY_REFERENCE if shape.seeds else ():
        rows.append({"name": f"{name}, by reference", "shape": str(shape)} | judge.by_reference(name))
    return rows, [note] + [f"no {name} here ({reason})" for name, reason in absent.items()]
