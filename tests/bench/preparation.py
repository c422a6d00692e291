"""Grouping and preparation alone, beside a plain copy of one input."""

from __future__ import annotations

import torch

from tests.bench.measure import Subject, measure
from tests.bench.shapes import Shape, tensors
from vc_attention import dispatch, layout, prepare, reference
from vc_attention.config import PROFILES, Action
from vc_attention.schedule import Schedule, Step

UNITS = ("prepare", "prepare_nvfp4", "group")
SCALE_N = dispatch.KERNELS[0].block_n
PACKED = {spec.probability for spec in dispatch.KERNELS if spec.packed}
STEPS = 40
FOUR_BITS = ("4bit", "int8-nvfp4")
NOTES = [
    "Values are in classes; perm is the grouping's own. GB/s counts each input read and each operand written once; "
    "`copy of v` counts read and write.",
    "`bits as reference`: every tensor of one head equals vc_attention/reference, bit for bit.",
]


def exact(q, k, v, numerics) -> dict[str, bool]:
    """Whether grouping and operands of the last head equal the reference's."""
    q, k, v = (x[:, -1:] for x in (q, k, v))
    got, expected = (room.group(v, numerics, Action.GROUP) for room in (prepare, reference))
    same = all(
        torch.equal(getattr(got, name), getattr(expected, name)) for name in ("centroids", "step", "rank", "perm")
    )
    tiling = SCALE_N, numerics.probability in PACKED
    operands = prepare.prepare(q, k, v, numerics, got.perm, True, *tiling)
    wanted = layout.images(reference.prepare(q, k, v, numerics, expected.perm, True, *tiling))
    return {"bit_exact": same and all(torch.equal(getattr(operands, name), x) for name, x in wanted.items())}


def subjects(shape: Shape) -> list[Subject]:
    q, k, v = tensors(shape)
    ops, balanced, quality = torch.ops.vc_attention, PROFILES["balanced"], PROFILES["quality"]
    grouping = prepare.group(v, balanced, Action.GROUP)
    one = shape.bytes + shape.bytes // 2
    rounded = shape.bytes * 9 / 32  # E2M1 elements and their scales
    checks = {profile: exact(q, k, v, PROFILES[profile]) for profile in ("balanced", "quality", *FOUR_BITS)}
    perm, blocks = grouping.perm, balanced.k_mean_blocks
    mean, factor = ops.channel_stats(q, k, blocks, True)
    center, amax = ops.q_center(q, blocks)
    return [
        Subject("copy of v", v.clone, bytes=2 * shape.bytes),
        Subject("channel statistics of q and k", lambda: ops.channel_stats(q, k, blocks, True)),
        Subject("q", lambda: ops.prepare_q(q, factor), bytes=one),
        Subject("k, a scale a step", lambda: ops.prepare_k_step(k, perm, mean, factor, 2), bytes=one),
        Subject("k, a scale a thread", lambda: ops.prepare_k(k, perm, mean, factor, True), bytes=one),
        Subject("v, E4M3", lambda: ops.prepare_v(v, perm, "e4m3", True, 2, True), bytes=one),
        Subject("v, INT8", lambda: ops.prepare_v(v, perm, "int8", True, 2, False), bytes=one),
        Subject("mean and magnitude of q, for NVFP4", lambda: ops.q_center(q, blocks), bytes=shape.bytes),
        Subject("q, NVFP4", lambda: ops.prepare_q_nvfp4(q, center, amax), bytes=shape.bytes + 2 * rounded),
        Subject("k, NVFP4", lambda: ops.prepare_k_nvfp4(k, perm, mean, center, amax), bytes=shape.bytes + rounded),
        Subject("v, NVFP4", lambda: ops.prepare_v_nvfp4(v, perm, True), bytes=shape.bytes + rounded),
        Subject(
            "prepare (balanced)", lambda: prepare.prepare(q, k, v, balanced, perm, True, SCALE_N, True), bytes=3 * one,
            accuracy=checks["balanced"],
        ),
        Subject(
            "prepare (quality)", lambda: prepare.prepare(q, k, v, quality, perm, True, SCALE_N), bytes=3 * one,
            accuracy=checks["quality"],
        ),
        *(
            Subject(
                f"prepare ({name})",
                lambda name=name: prepare.prepare(q, k, v, PROFILES[name], perm, True, SCALE_N),
                accuracy=checks[name],
            )
            for name in FOUR_BITS
        ),
        Subject("refresh (assign only)", lambda: prepare.group(v, balanced, Action.ASSIGN, grouping)),
        Subject("group (cold)", lambda: prepare.group(v, balanced, Action.GROUP), accuracy=checks["balanced"]),
    ]  # fmt: skip


def actions() -> list[Action]:
    """What a layer does in each step of the default schedule."""
    schedule, last, taken = Schedule(), None, []
    for step in range(STEPS):
        action = schedule.decide(Step(step, step < schedule.window * STEPS), last)
        last = step if action in (Action.GROUP, Action.ASSIGN) else last
        taken.append(action)
    return taken


def averaged(rows: list[dict]) -> float:
    """ms a step that grouping and preparation take on average over the default schedule."""
    ms = {row["name"]: row["ms"]["median"] for row in rows}
    extra = {Action.GROUP: ms["group (cold)"], Action.ASSIGN: ms["refresh (assign only)"]}
    return sum(ms["prepare (balanced)"] + extra.get(action, 0.0) for action in actions()) / STEPS


def run(shape: Shape, seconds: float) -> tuple[list[dict], list[str]]:
    table = subjects(shape)
    measure(table, seconds)
    rows = [subject.row(str(shape)) for subject in table]
    note = f"{shape}: {averaged(rows):.2f} ms a step on average over {STEPS} steps of the default schedule"
    return rows, [note]
