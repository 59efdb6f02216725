"""Attention on the sphere: the error of rotations falls with the resolution, and the poles are not special.

    python benchmarks/sphere.py [--seeds 3]

Smooth functions on the sphere (bumps) are rotated exactly, by rotating their centres. The error is that of the layer's
output against its rotated output on the unrotated function, weighted by area, with contrasted random weights. Beside
it: the same layer without areas (every pixel counts the same), and planar attention over a window of as many pixels as
the cap has at the equator. Polar is the error within 22.5 degrees of a pole, relative to that of the whole sphere.
"""

import argparse
import math

import torch

from unpose.groups import parse
from unpose.sphere import SphereAttention, areas, directions, rotate, sphere_attention


def bumps(h, seed, turn=None):
    generator = torch.Generator().manual_seed(seed)
    centres = torch.nn.functional.normalize(torch.randn(4, 5, 3, generator=generator, dtype=torch.float64), dim=-1)
    heights = torch.randn(4, 5, generator=generator, dtype=torch.float64)
    centres = centres if turn is None else centres @ turn.mT
    near = torch.einsum("hwx,cnx->cnhw", directions(h, 2 * h, torch.float64), centres)
    return torch.einsum("cn,cnhw->chw", heights, (6 * (near - 1)).exp())[None]


def without_areas(layer, maps):
    """Cancel the areas in the softmax by their inverse in an extra channel of queries and keys."""
    h, w = maps.shape[-2:]
    parts = layer.projection(maps).chunk(3, dim=1)
    query, key, value = (part.unflatten(1, (layer.heads, -1)) for part in parts)
    scale = math.sqrt(query.shape[2] + 1) / math.sqrt(query.shape[2])
    extra = (-areas(h, w, maps.dtype).log() * math.sqrt(query.shape[2] + 1)).expand(1, layer.heads, 1, h, w)
    query = torch.cat([query * scale, torch.ones_like(extra)], dim=2)
    key = torch.cat([key, extra], dim=2)
    return maps + layer.out(sphere_attention(query, key, value, layer.bias, layer.radius).flatten(1, 2))


def planar(layer, maps):
    """Attention over square windows of pixels, wrapped around the globe and cut off at the poles."""
    h = maps.shape[-2]
    reach = max(1, round(layer.radius / (math.pi / h)))
    parts = layer.projection(maps).chunk(3, dim=1)
    query, key, value = (part.unflatten(1, (layer.heads, -1)) for part in parts)
    scores, values = [], []
    for dy in range(-reach, reach + 1):
        for dx in range(-reach, reach + 1):
            if math.hypot(dx, dy) > reach:
                continue
            inside = torch.zeros(h, 1, dtype=torch.bool)
            inside[max(0, -dy) : h - max(0, dy)] = True
            moved = key.roll((-dy, -dx), (-2, -1))
            score = (query * moved).sum(2) / math.sqrt(query.shape[2])
            scores.append(score.masked_fill(~inside, -torch.inf))
            values.append(value.roll((-dy, -dx), (-2, -1)))
    weights = torch.stack(scores).softmax(0)
    out = sum(weight[:, :, None] * each for weight, each in zip(weights, values, strict=True))
    return maps + layer.out(out.flatten(1, 2))


def error(call, h, seed, turn):
    with torch.no_grad():
        found, upright = call(bumps(h, seed, turn)), call(bumps(h, seed))
    gap = (found - rotate(upright, turn)).square() * areas(h, 2 * h, torch.float64)
    size = (found.square() * areas(h, 2 * h, torch.float64)).sum()
    cap = max(1, h // 8)
    share = areas(h, 2 * h, torch.float64)[:cap].sum() / areas(h, 2 * h, torch.float64).sum()
    polar = gap[..., :cap, :].sum() + gap[..., -cap:, :].sum()
    return float((gap.sum() / size).sqrt()), float((polar / (2 * share) / gap.sum()).sqrt())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    print("| rows | attention with areas | polar | without areas | polar | planar windows | polar |")
    print("|---|---|---|---|---|---|---|")
    for h in (8, 16, 32, 48):
        results = []
        for seed in range(options.seeds):
            torch.manual_seed(seed)
            layer = SphereAttention(4, heads=2, radius=0.7).double()
            for parameter in layer.parameters():
                parameter.data = torch.randn(parameter.shape).double()
            generator = torch.Generator().manual_seed(seed)
            turn = parse("so3").random(1, generator=generator, dtype=torch.float64)[0, :3, :3]
            calls = (layer, lambda x, net=layer: without_areas(net, x), lambda x, net=layer: planar(net, x))
            results.append([value for call in calls for value in error(call, h, seed, turn)])
        means = torch.tensor(results).mean(0).tolist()
        print(f"| {h} | " + " | ".join(f"{value:.3g}" for value in means) + " |", flush=True)


if __name__ == "__main__":
    main()
