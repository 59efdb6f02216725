"""Latent actions: the next image of a film of a turning digit, and the frequencies of the operators that were learnt.

    UNPOSE_DATA=/path/to/arrays python benchmarks/latent_action.py [--seeds 3] [--steps 3000]

A film is a digit of MNIST at 20 x 20 pixels that starts at a random angle and turns by a constant step of up to 60
degrees. `fit_latent_action` sees the films and neither angles nor steps. It is tested on other films of the same ten
digits, and on films of digits that it has never seen. `error` is the squared error of the third image relative to the
variance of the third images, `unmoved` that of the second image in place of a prediction. The angles of the eigenvalues
of an operator should be whole multiples k t of the step t, with |k| of at most (order - 1) / 2: `degrees` is the median
distance from the nearest one, for steps of more than 15 degrees, `by chance` that for the steps of other films, and
`frequencies` are the k that at least 5 % of the eigenvalues are nearest to.
"""

import argparse
import math

import torch
from torch.nn.functional import interpolate

from arrays import load
from unpose.discover import fit_latent_action
from unpose.groups import rotation
from unpose.images import warp

ORDER = 5
LARGEST_STEP = math.radians(60)


def films(digits, n, seed):
    """Films (n, 3, 1, 20, 20) and their steps (n,) in radians."""
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.from_numpy(digits)[torch.randint(len(digits), (n,), generator=generator)]
    images = interpolate(chosen.float().div(255)[:, None], size=(20, 20), mode="bilinear", antialias=True)
    start, step = (2 * torch.rand(2, n, generator=generator) - 1) * torch.tensor([[math.pi], [LARGEST_STEP]])
    return torch.stack([warp(images, rotation(start + k * step)) for k in range(3)], dim=1), step


def from_multiples(angles, step):
    """Distance of angles (n, order) from the nearest multiple of the steps (n,), and its number: (n, order) each."""
    numbers = torch.arange(-(ORDER // 2), ORDER // 2 + 1)
    away = torch.remainder(angles[:, :, None] - step[:, None, None] * numbers + math.pi, 2 * math.pi) - math.pi
    distance, nearest = away.abs().min(2)
    return distance.rad2deg(), numbers[nearest].abs()


def measured(action, tested, step, seed):
    first, second, third = tested.unbind(1)
    with torch.no_grad():
        predicted = action(first, second)
    variance = (third - third.mean(0)).square().mean()
    large = step.abs() > math.radians(15)
    angles = action.angles(first, second)[large]
    degrees, numbers = from_multiples(angles, step[large])
    shuffled = step[large][torch.randperm(int(large.sum()), generator=torch.Generator().manual_seed(seed))]
    shares = torch.bincount(numbers.flatten(), minlength=ORDER // 2 + 1) / numbers.numel()
    return {
        "error": float((predicted - third).square().mean() / variance),
        "unmoved": float((second - third).square().mean() / variance),
        "degrees": float(degrees.median()), "by chance": float(from_multiples(angles, shuffled)[0].median()),
        "frequencies": torch.nonzero(shares > 0.05)[:, 0].tolist(),
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--films", type=int, default=8000)
    options = parser.parse_args()
    train, test = load("mnist.npz", "x_train", "x_test")
    print("| films of | error | unmoved | degrees | by chance | frequencies |\n|---|---|---|---|---|---|")
    for name, known, tested in (("ten digits", train[:10], train[:10]), ("all digits, unseen ones", train, test)):
        rows = []
        for seed in range(options.seeds):
            action = fit_latent_action(
                films(known, options.films, seed)[0].movedim(2, -1).numpy(), order=ORDER, steps=options.steps,
                random_state=seed,
            )  # fmt: skip
            rows.append(measured(action, *films(tested, 1000, 1000 + seed), seed))
        cells = ["; ".join(f"{row[key]:.2f}" for row in rows) for key in list(rows[0])[:4]]
        cells.append("; ".join(" and ".join(map(str, row["frequencies"])) for row in rows))
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
