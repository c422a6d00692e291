"""Synthetic clips, drawn from a seed on any device: coloured shapes that bounce, collide, spin, deform, orbit and
march, and a camera that pans and zooms over a textured ground.

A scene is a function of place and time, so any window of it can be rendered at any size and length. Places are in the
square -1..1 with y downwards, time in seconds at 16 frames a second.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

KINDS = (
    "balls bouncing",
    "two shapes colliding",
    "shapes spinning",
    "blobs deforming",
    "moons orbiting",
    "camera panning",
    "camera zooming",
    "shapes marching",
)
FPS = 16
SIZE = 256
SLOTS = 4  # shapes in a scene; those not wanted have radius 0
PALETTE = (
    (0.90, 0.16, 0.16), (0.98, 0.62, 0.10), (0.97, 0.90, 0.25), (0.20, 0.72, 0.28),
    (0.15, 0.72, 0.80), (0.18, 0.35, 0.90), (0.62, 0.25, 0.85), (0.96, 0.96, 0.94),
)  # fmt: skip


@dataclass
class Scenes:
    """B scenes. `kind` [B]; per shape [B, S]: corners (0 a disc), stripes in a radius, radius, and colour [B, S, 3];
    the ground's two colours [B, 2, 3]; numbers 0..1 for whatever a kind decides by chance, [B, 16] and [B, S, 8]."""

    kind: torch.Tensor
    corners: torch.Tensor
    colour: torch.Tensor
    stripes: torch.Tensor
    radius: torch.Tensor
    ground: torch.Tensor
    by_scene: torch.Tensor
    by_shape: torch.Tensor


def draw(count: int, generator: torch.Generator) -> Scenes:
    """`count` random scenes on the generator's device."""
    device = generator.device

    def uniform(*shape):
        return torch.rand(*shape, generator=generator, device=device)

    def choice(options, *shape):
        options = torch.tensor(options, device=device)
        return options[torch.randint(len(options), shape, generator=generator, device=device)]

    palette = torch.tensor(PALETTE, device=device)
    colours = uniform(count, len(PALETTE)).argsort(-1)  # no colour twice, the last ones make the ground
    hue = palette[colours[:, -2:]]
    kind = torch.randint(len(KINDS), (count,), generator=generator, device=device)
    return Scenes(
        kind=kind,
        corners=choice((0, 0, 3, 4, 5), count, SLOTS) * (kind > 0)[:, None],  # balls are round
        colour=palette[colours[:, :SLOTS]],
        stripes=choice((0.0, 0.0, 2.0), count, SLOTS),
        radius=0.16 + 0.14 * uniform(count, SLOTS),
        ground=(0.10 + 0.35 * hue) * (0.5 + uniform(count, 1, 1)),
        by_scene=uniform(count, 16),
        by_shape=uniform(count, SLOTS, 8),
    )


@dataclass
class _Motion:
    """Shapes over time, [B, S, T]: place, radius, angle, depth of lobes and their phase; camera [B, T]: place, zoom."""

    x: torch.Tensor
    y: torch.Tensor
    radius: torch.Tensor
    angle: torch.Tensor
    lobes: torch.Tensor
    phase: torch.Tensor
    camera_x: torch.Tensor
    camera_y: torch.Tensor
    zoom: torch.Tensor


def _motion(scenes: Scenes, seconds: torch.Tensor) -> _Motion:
    """Every kind's motion, each scene picking its own."""
    t = seconds[None, None]
    u = scenes.by_shape[..., None]  # [B, S, 8, 1]
    a = scenes.by_scene[:, None, :, None]  # [B, 1, 16, 1]
    slot = torch.arange(SLOTS, device=t.device)[None, :, None]
    still, one = torch.zeros_like(u[:, :, 0] + t), torch.ones_like(u[:, :, 0] + t)
    place_x = (slot % 2 - 0.5) * 0.95 + 0.35 * (u[:, :, 0] - 0.5) + still
    place_y = (slot // 2 - 0.5) * 0.95 + 0.35 * (u[:, :, 1] - 0.5) + still
    radius = scenes.radius[..., None] * one
    count = 2 + (3 * a[:, :, 0]).floor()  # 2..4 shapes
    few = (slot < count) * radius
    turn = 2 * math.pi * u[:, :, 2]
    spin = turn + (4.0 * u[:, :, 3] - 2.0) * t
    direction = 2 * math.pi * a[:, :, 1]
    motions = (
        _bouncing(u, t, few, turn + still),
        _colliding(a, t, slot, radius, direction, spin),
        (place_x, place_y, few, turn + (u[:, :, 3] - 0.5).sign() * (2.0 + 3.0 * u[:, :, 4]) * t),
        (place_x, place_y, few * 1.25, turn + still),
        _orbiting(a, t, slot, radius, spin),
        (place_x * 1.6, place_y * 1.6, radius, turn + still),
        (place_x, place_y, few, turn + still),
        _marching(a, t, slot, radius, direction, turn + still),
    )
    kind = scenes.kind[:, None, None]
    x, y, r, angle = (sum(torch.where(kind == i, m[part], 0.0) for i, m in enumerate(motions)) for part in range(4))
    deforming, panning, zooming = ((kind == i).float() for i in (3, 5, 6))
    drift = panning[:, 0] * (0.5 + 0.6 * a[:, 0, 2]) * (t[0] - 0.5)
    grow = zooming[:, 0] * (a[:, 0, 3] - 0.5).sign() * (0.4 + 0.5 * a[:, 0, 4]) * (t[0] - 0.5)
    return _Motion(
        x, y, r, angle,
        lobes=deforming * (0.12 + 0.2 * u[:, :, 5]) + still,
        phase=(3.0 + 4.0 * u[:, :, 6]) * t + turn,
        camera_x=drift * direction[:, 0].cos(), camera_y=drift * direction[:, 0].sin(), zoom=grow.exp(),
    )  # fmt: skip


def _fold(x: torch.Tensor, limit: torch.Tensor) -> torch.Tensor:
    """A point that moves by x between two walls at -limit and limit."""
    return limit - ((x + limit) % (4 * limit) - 2 * limit).abs()


def _bouncing(u, t, radius, angle):
    """Gravity and a floor: parabolas of a period of their own; walls left and right."""
    wall = (0.95 - radius).clamp(min=0.1)
    x = _fold(1.9 * (u[:, :, 0] - 0.5) + (u[:, :, 3] - 0.5) * 1.8 * t, wall)
    beat = (t / (0.8 + 0.6 * u[:, :, 4]) + u[:, :, 5]) % 1.0
    height = (0.5 + 0.9 * u[:, :, 6]) * 4 * beat * (1 - beat)
    return x, wall - height, radius, angle


def _colliding(a, t, slot, radius, direction, angle):
    """Two shapes of one size that meet head on, and part as they came."""
    radius = torch.where(slot < 2, radius[:, :1] * 1.15, 0.0)
    meet = 0.35 + 0.5 * a[:, :, 5]
    distance = radius[:, :1] + (0.7 + 0.6 * a[:, :, 6]) * (t - meet).abs()
    side = torch.where(slot == 0, -1.0, 1.0)
    at = 0.4 * (a[:, :, 7:9, 0] - 0.5)
    return (
        at[:, :, :1] + side * distance * direction.cos(),
        at[:, :, 1:] + side * distance * direction.sin(),
        radius,
        angle,
    )


def _orbiting(a, t, slot, radius, angle):
    """A planet in the middle and three moons around it."""
    orbit = torch.where(slot == 0, 0.0, 0.3 + 0.18 * slot)
    turn = 2 * math.pi * a[:, :, 5] + slot * 2.2 + (a[:, :, 6] - 0.5).sign() * (4.5 - 0.8 * slot) * t
    radius = torch.where(slot == 0, 0.24, 0.45 * radius)
    return orbit * turn.cos(), orbit * turn.sin(), radius, angle


def _marching(a, t, slot, radius, direction, angle):
    """Four shapes in a row, all at one speed, leaving on one side and coming back on the other."""
    along = (0.65 * slot + 1.3 * a[:, :, 5] + (0.7 + 0.6 * a[:, :, 6]) * t) % 2.6 - 1.3
    across = 0.8 * (a[:, :, 7] - 0.5)
    level = a[:, :, 8] < 0.5
    return torch.where(level, along, across), torch.where(level, across, along), 0.8 * radius[:, :1] + 0 * along, angle


def render(scenes: Scenes, frames: int, rows: slice = slice(0, SIZE), columns: slice = slice(0, SIZE)) -> torch.Tensor:
    """fp32 video `[B, 3, frames, H, W]`, 0..1: the window of rows and columns of a picture of SIZE x SIZE."""
    device = scenes.kind.device
    motion = _motion(scenes, torch.arange(frames, device=device) / FPS)
    grid = (torch.arange(SIZE, device=device) + 0.5) * (2 / SIZE) - 1
    camera_x, camera_y, zoom = (m[:, :, None, None] for m in (motion.camera_x, motion.camera_y, motion.zoom))
    x = grid[columns][None, None, None, :] / zoom + camera_x
    y = grid[rows][None, None, :, None] / zoom + camera_y
    picture = _ground(scenes, x, y)
    pixel = 2 / SIZE / zoom
    for s in range(SLOTS):
        at = [m[:, s, :, None, None] for m in (motion.x, motion.y, motion.radius, motion.angle)]
        lobes, phase = (m[:, s, :, None, None] for m in (motion.lobes, motion.phase))
        corners, stripes = (m[:, s, None, None, None] for m in (scenes.corners, scenes.stripes))
        cover, shade = _shape(x, y, *at, corners, stripes, lobes, phase, pixel)
        colour = scenes.colour[:, s, :, None, None, None] * shade[:, None]
        picture = torch.lerp(picture, colour, cover[:, None])
    return picture.clamp_(0, 1)


def _ground(scenes: Scenes, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A checked or waving ground in two dark colours."""
    a = scenes.by_scene[:, :, None, None, None]
    fine = 2.0 + 3.0 * a[:, 9]
    wave = (fine * x + 6 * a[:, 10]).sin() * (fine * y + 6 * a[:, 11]).sin()
    checks = (4 * wave).clamp(-1, 1)
    pattern = torch.where(a[:, 12] < 0.5, checks, wave)
    first, second = scenes.ground[:, :, :, None, None, None].unbind(1)
    return torch.lerp(first, second, (0.5 + 0.5 * pattern)[:, None])


def _shape(x, y, cx, cy, radius, angle, corners, stripes, lobes, phase, pixel):
    """(coverage, brightness) `[B, T, H, W]` of one shape, whose outline is a radius for every direction."""
    dx, dy = x - cx, y - cy
    distance = (dx * dx + dy * dy).sqrt()
    theta = torch.atan2(dy, dx) - angle
    sector = 2 * math.pi / corners.clamp(min=1)
    polygon = (sector / 2).cos() / ((theta % sector) - sector / 2).cos()
    outline = torch.where(corners > 0, 1.25 * polygon, 1.0) * (1 + lobes * (3 * theta + phase).sin())
    edge = radius * outline
    cover = ((edge - distance) / pixel + 0.5).clamp(0, 1) * (radius > 0)
    along = distance * theta.cos() / radius.clamp(min=1e-3)
    stripe = torch.where(stripes > 0, 0.82 + 0.18 * (6 * (along * stripes * math.pi).sin()).clamp(-1, 1), 1.0)
    return cover, stripe * (1.0 - 0.35 * (distance / radius.clamp(min=1e-3)).clamp(max=1.5) ** 2)
