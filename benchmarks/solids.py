"""Points on the surfaces of parametric solids, for the benchmarks of `unpose.points`."""

import numpy as np


def _sphere(rng, n):
    points = rng.normal(size=(n, 3))
    return points / np.linalg.norm(points, axis=1, keepdims=True)


def _box(rng, n, sides):
    sides = np.asarray(sides, float)
    areas = np.array([sides[1] * sides[2], sides[0] * sides[2], sides[0] * sides[1]])
    axis = rng.choice(3, n, p=areas / areas.sum())
    points = rng.uniform(-1, 1, (n, 3))
    points[np.arange(n), axis] = np.sign(points[np.arange(n), axis])
    return points * sides


def _turned(rng, n, profile):
    """A solid of revolution: the profile (k, 2) of radius and height, about z."""
    profile = np.asarray(profile, float)
    steps = np.diff(profile, axis=0)
    areas = np.linalg.norm(steps, axis=1) * (profile[1:, 0] + profile[:-1, 0])
    part = rng.choice(len(steps), n, p=areas / areas.sum())
    t, angle = rng.uniform(size=n), rng.uniform(0, 2 * np.pi, n)
    radius, height = (profile[part] + t[:, None] * steps[part]).T
    return np.stack([radius * np.cos(angle), radius * np.sin(angle), height], 1)


def _torus(rng, n, tube):
    u, v = rng.uniform(0, 2 * np.pi, (2, n))
    ring = 1 + tube * np.cos(v)
    return np.stack([ring * np.cos(u), ring * np.sin(u), tube * np.sin(v)], 1)


def _helix(rng, n, turns):
    t = rng.uniform(-1, 1, n)
    angle = turns * np.pi * t
    return np.stack([0.7 * np.cos(angle), 0.7 * np.sin(angle), 1.2 * t], 1) + 0.12 * _sphere(rng, n)


def _arms(rng, n, directions):
    """Bars from the origin along directions."""
    directions = np.asarray(directions, float)
    which = rng.choice(len(directions), n)
    return directions[which] * rng.uniform(0, 1, (n, 1)) + 0.15 * _sphere(rng, n)


def _circle(start, end, radius, centre=0.0, n=12):
    angles = np.linspace(start, end, n)
    return np.stack([radius * np.cos(angles), centre + radius * np.sin(angles)], 1)


KINDS = {
    "box": lambda r, n: _box(r, n, (1, r.uniform(0.6, 1), r.uniform(0.5, 1))),
    "plate": lambda r, n: _box(r, n, (1, r.uniform(0.6, 1), r.uniform(0.05, 0.2))),
    "ellipsoid": lambda r, n: _sphere(r, n) * (1, r.uniform(0.6, 1), r.uniform(0.5, 1)),
    "cylinder": lambda r, n: _turned(r, n, [(0, -(h := r.uniform(0.7, 1.5))), (0.7, -h), (0.7, h), (0, h)]),
    "cone": lambda r, n: _turned(r, n, [(0, -(h := r.uniform(0.6, 1.2))), (0.8, -h), (0, h)]),
    "capsule": lambda r, n: _turned(r, n, np.concatenate([_circle(-np.pi / 2, 0, 0.5, -(h := r.uniform(0.4, 1.0))),
                                                          _circle(0, np.pi / 2, 0.5, h)])),
    "torus": lambda r, n: _torus(r, n, r.uniform(0.2, 0.5)),
    "helix": lambda r, n: _helix(r, n, r.uniform(1.5, 3)),
    "bowl": lambda r, n: _turned(r, n, np.concatenate([_circle(-np.pi / 2, r.uniform(-0.4, 0.2), 1.0)])),
    "corner": lambda r, n: _arms(r, n, np.diag(r.uniform(0.8, 1.4, 3))),
    "cross": lambda r, n: _arms(r, n, [(1, 0, 0), (-1, 0, 0), (0, 1.2, 0), (0, -1.2, 0)] * r.uniform(0.8, 1.2, (4, 1))),
    "tee": lambda r, n: _arms(r, n, [(1, 0, 0), (-1, 0, 0), (0, r.uniform(1, 2), 0)]),
}  # fmt: skip


def cloud(kind, rng, n, noise=0.02):
    """n points on a solid of this kind, upright, centred, of unit size."""
    points = KINDS[kind](rng, n)
    points = points - points.mean(0)
    points = points / np.sqrt(np.square(points).sum(1).mean())
    return points + noise * rng.normal(size=points.shape)


def shape(rng, n):
    """n points on a shape without symmetry: a surface with random bumps, or several solids joined."""
    if rng.random() < 0.4:
        directions, bumps = _sphere(rng, n), _sphere(rng, 6)
        heights = rng.uniform(0.2, 0.6, 6) * np.exp(4 * (directions @ bumps.T - 1))
        return directions * (1 + heights.sum(1))[:, None]
    parts = [
        rng.uniform(-1, 1, 3) + rng.uniform(0.3, 0.9) * cloud(kind, rng, n // 2 + 1, 0.0) @ rotation(rng).T
        for kind in rng.choice(list(KINDS), 3, replace=False)
    ]
    points = np.concatenate(parts)
    return points[rng.choice(len(points), n, replace=False)]


def rotation(rng):
    """A uniform random rotation."""
    q, r = np.linalg.qr(rng.normal(size=(3, 3)))
    q = q * np.sign(np.diag(r))
    return q * np.array([1, 1, np.linalg.det(q)])
