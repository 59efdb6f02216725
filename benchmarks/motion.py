"""Moving digits: recurrent networks trained on still sequences, tested on moving ones.

    python benchmarks/motion.py [--steps 400] [--seeds 1] [--fastest 2] [--width 24] [--batch 64] [--tested 797]
        [--side 20] [--frames 6] [--noise 0.5] [--device cpu]

scikit-learn's digits (8 pixels, 1,000 to train on, 797 to test on) on a canvas that wraps around, at a random
place, some frames with noise in each frame. Training sequences stand still. `flow_rnn` with all velocities up to
the fastest along x and y (25 for 2) beside the same network with the velocity 0 alone, which has as many parameters:
trained still, and trained on moving sequences. Velocities whose column ends in * are not listed.

A second table: digits that leave the canvas at two pixels a frame and are cut off at its border; in the last frame all,
half or none of the columns are inside. Borders of the network wrap around, and what it remembers of a thing that left
comes in at the other side; or the frames are padded with zeros, so that nothing comes back.
"""

import argparse

import numpy as np
import torch
from sklearn.datasets import load_digits

from unpose.motion import flow_rnn

TESTED = [(0, 0), (1, 0), (1, 1), (2, 0), (2, -1), (2, 2), (3, 0), (4, 3)]


def leaving(images, left, options, rng):
    """(b, t, 1, side, side): images move to the right by 2 pixels; so many columns are outside in the last frame."""
    side, count = options.side, options.frames
    canvas = np.zeros((len(images), count, 1, side, side + 16), np.float32)
    for k, image in enumerate(images):
        y = rng.integers(side - 7)
        for t in range(count):
            x = side - 8 + left - 2 * (count - 1 - t)
            canvas[k, t, 0, y : y + 8, x : x + 8] = image
    frames = canvas[..., :side]
    return torch.from_numpy(frames + options.noise * rng.normal(size=frames.shape).astype(np.float32))


def sequences(images, velocities, options, rng):
    """(b, t, 1, side, side): each image moves at its velocity from a random place; noise is new in every frame."""
    frames = np.zeros((len(images), options.frames, 1, options.side, options.side), np.float32)
    frames[:, :, 0, :8, :8] = images[:, None]
    for k, (x, y) in enumerate(velocities):
        place = rng.integers(options.side, size=2)
        for t in range(options.frames):
            frames[k, t, 0] = np.roll(frames[k, t, 0], (place[0] + t * y, place[1] + t * x), (0, 1))
    return torch.from_numpy(frames + options.noise * rng.normal(size=frames.shape).astype(np.float32))


def fit(net, images, classes, options, seed, drawn):
    """Train on sequences that move at velocities drawn from a list."""
    rng = np.random.default_rng(seed)
    net = net.to(options.device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=options.steps)
    for _ in range(options.steps):
        rows = rng.choice(len(images), options.batch, replace=False)
        velocities = [drawn[rng.integers(len(drawn))] for _ in rows]
        answers = net(sequences(images[rows], velocities, options, rng).to(options.device))
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
    parser.add_argument("--fastest", type=int, default=2)
    parser.add_argument("--width", type=int, default=24)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--tested", type=int, default=797, help="digits to test on")
    parser.add_argument("--side", type=int, default=20, help="side of the canvas, at least 6 + 2 frames")
    parser.add_argument("--frames", type=int, default=6)
    parser.add_argument("--noise", type=float, default=0.5, help="standard deviation, of images in [0, 1]")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    digits = load_digits()
    images, classes = digits.images.astype(np.float32) / 16, digits.target
    speeds, still = range(-options.fastest, options.fastest + 1), [(0, 0)]
    listed = [(x, y) for x in speeds for y in speeds]
    columns = [f"{x},{y}" + "*" * ((x, y) not in listed) for x, y in TESTED]
    print("| trained | parameters | " + " | ".join(columns) + " |\n|---|---|" + "---|" * len(columns))
    left = []
    for name, copies, drawn in (
        ("flow_rnn, still", listed, still),
        ("plain, still", still, still),
        ("plain, moving", still, listed),
    ):
        rows, borders = [], []
        for seed in range(options.seeds):
            torch.manual_seed(seed)
            net = fit(flow_rnn(copies, 10, width=options.width), images[:1000], classes[:1000], options, seed, drawn)

            def score(draw, net=net):
                kept = slice(1000, 1000 + options.tested)
                return accuracy(net, images[kept], classes[kept], draw, options.device)

            rows.append([
                score(lambda part, rng, u=u: sequences(part, [u] * len(part), options, rng)) for u in TESTED
            ])  # fmt: skip
            borders.append([
                score(lambda part, rng, gone=gone, pad=pad: pad(leaving(part, gone, options, rng)))
                for pad in (lambda frames: frames, torch.nn.ZeroPad2d(2 * options.frames)) for gone in (0, 4, 8)
            ])  # fmt: skip
        count = sum(parameter.numel() for parameter in net.parameters())
        means = np.mean(rows, 0)
        print(f"| {name} | {count:,} | " + " | ".join(f"{value:.3f}" for value in means) + " |", flush=True)
        left.append(f"| {name} | " + " | ".join(f"{value:.3f}" for value in np.mean(borders, 0)) + " |")
    print("\n| leaves the canvas | inside | half | gone | padded: inside | half | gone |\n|" + "---|" * 7)
    print("\n".join(left))


if __name__ == "__main__":
    main()
