"""Moving digits: recurrent networks trained on still sequences, tested on moving ones.

    python benchmarks/motion.py [--steps 400] [--seeds 1] [--device cpu]

scikit-learn's digits (8 pixels, 1,000 to train on, 797 to test on) on a canvas of 20 pixels that wraps around, at a
random place, six frames with noise in each frame. Training sequences stand still. `flow_rnn` with 25 velocities beside
the same network with the velocity 0 alone, which has as many parameters: trained still, and trained on moving
sequences. Velocities 3,0 and 4,3 are not among the 25.

A second table: digits that leave the canvas at two pixels a frame and are cut off at its border; in the last frame all,
half or none of the columns are inside. Borders of the network wrap around, and what it remembers of a thing that left
comes in at the other side; or the frames are padded with zeros, so that nothing comes back.
"""

import argparse

import numpy as np
import torch
from sklearn.datasets import load_digits

from unpose.motion import flow_rnn

SIDE, FRAMES = 20, 6
LISTED = [(x, y) for x in (-2, -1, 0, 1, 2) for y in (-2, -1, 0, 1, 2)]


def leaving(images, left, rng, noise=0.5):
    """(b, t, 1, side, side): images move to the right by 2 pixels; so many columns are outside in the last frame."""
    canvas = np.zeros((len(images), FRAMES, 1, SIDE, SIDE + 16), np.float32)
    for k, image in enumerate(images):
        y = rng.integers(SIDE - 7)
        for t in range(FRAMES):
            x = SIDE - 8 + left - 2 * (FRAMES - 1 - t)
            canvas[k, t, 0, y : y + 8, x : x + 8] = image
    frames = canvas[..., :SIDE]
    return torch.from_numpy(frames + noise * rng.normal(size=frames.shape).astype(np.float32))


def sequences(images, velocities, rng, noise=0.5):
    """(b, t, 1, side, side): each image moves at its velocity from a random place; noise is new in every frame."""
    frames = np.zeros((len(images), FRAMES, 1, SIDE, SIDE), np.float32)
    frames[:, :, 0, :8, :8] = images[:, None]
    for k, (x, y) in enumerate(velocities):
        place = rng.integers(SIDE, size=2)
        for t in range(FRAMES):
            frames[k, t, 0] = np.roll(frames[k, t, 0], (place[0] + t * y, place[1] + t * x), (0, 1))
    return torch.from_numpy(frames + noise * rng.normal(size=frames.shape).astype(np.float32))


def fit(net, images, classes, options, seed, moving):
    rng = np.random.default_rng(seed)
    net = net.to(options.device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=options.steps)
    for _ in range(options.steps):
        rows = rng.choice(len(images), 64, replace=False)
        velocities = [LISTED[rng.integers(len(LISTED))] if moving else (0, 0) for _ in rows]
        answers = net(sequences(images[rows], velocities, rng).to(options.device))
        loss = torch.nn.functional.cross_entropy(answers, torch.as_tensor(classes[rows]).to(options.device))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return net.eval()


def accuracy(net, images, classes, draw, device):
    rng = np.random.default_rng(7)
    right = 0
    with torch.no_grad():
        for start in range(0, len(images), 100):
            part = images[start : start + 100]
            answers = net(draw(part, rng).to(device)).argmax(1).cpu().numpy()
            right += int((answers == classes[start : start + 100]).sum())
    return right / len(images)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    digits = load_digits()
    images, classes = digits.images.astype(np.float32) / 16, digits.target
    tested = [(0, 0), (1, 0), (1, 1), (2, 0), (2, -1), (2, 2), (3, 0), (4, 3)]
    print("| trained | parameters | " + " | ".join(f"{x},{y}" for x, y in tested) + " |")
    print("|---|---|" + "---|" * len(tested))
    left = []
    for name, listed, moving in (
        ("flow_rnn, still", LISTED, False),
        ("plain, still", [(0, 0)], False),
        ("plain, moving", [(0, 0)], True),
    ):
        rows, borders = [], []
        for seed in range(options.seeds):
            torch.manual_seed(seed)
            net = fit(flow_rnn(listed, 10, width=24), images[:1000], classes[:1000], options, seed, moving)

            def score(draw, net=net):
                return accuracy(net, images[1000:], classes[1000:], draw, options.device)

            rows.append([
                score(lambda part, rng, u=u: sequences(part, [u] * len(part), rng)) for u in tested
            ])  # fmt: skip
            borders.append([
                score(lambda part, rng, gone=gone, pad=pad: pad(leaving(part, gone, rng)))
                for pad in (lambda frames: frames, torch.nn.ZeroPad2d(12)) for gone in (0, 4, 8)
            ])  # fmt: skip
        count = sum(parameter.numel() for parameter in net.parameters())
        means = np.mean(rows, 0)
        print(f"| {name} | {count:,} | " + " | ".join(f"{value:.3f}" for value in means) + " |", flush=True)
        left.append(f"| {name} | " + " | ".join(f"{value:.3f}" for value in np.mean(borders, 0)) + " |")
    print("\n| leaves the canvas | inside | half | gone | padded: inside | half | gone |\n|" + "---|" * 7)
    print("\n".join(left))


if __name__ == "__main__":
    main()
