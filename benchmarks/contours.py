"""Outlines: MPEG-7 silhouettes classified from five examples a class, and clustered with pixels and outlines.

    UNPOSE_DATA=/path/to/arrays python benchmarks/contours.py classify [--splits 3] [--first 10] [--steps 400]
    UNPOSE_DATA=/path/to/arrays python benchmarks/contours.py cluster  [--kinds 20] [--seeds 3]

`classify`: 65 classes, 5 examples of each are known, the other 15 are tested; every outline is turned by a random angle
and begins at a random point. Orbit distances with the nearest example and with a support vector machine on
exp(-distance^2 / median); moduli of Fourier coefficients; a complex circular network; and, as the peer, a circular 1-D
convolution network on x and y of about as many parameters, trained with random turns, mirrors and starts. The power of
frequencies and the kernel were chosen on splits 0 to 2; the default splits are others.

`cluster`: silhouettes at random pose, true number of clusters: pixels alone, and pixels joined with outlines.
"""

import argparse

import numpy as np

from arrays import load
from unpose.contours import complex_circular_net, outline_distances, outline_features, resample

POINTS = 100


def outlines(seed):
    """All outlines, turned and begun at random: complex (1300, 100), and their classes."""
    curves, classes = load("mpeg7_shapes.npz", "contour", "y")
    rng = np.random.default_rng(seed)
    moved = []
    for x, y in curves.astype(float):
        curve = np.exp(1j * rng.uniform(0, 2 * np.pi)) * (x - 1j * y)
        moved.append(resample(np.roll(curve, rng.integers(len(curve))), POINTS))
    return np.stack(moved), classes


def split(classes, seed, known=5):
    rng = np.random.default_rng(seed)
    rows = [rng.permutation(np.flatnonzero(classes == each)) for each in np.unique(classes)]
    return np.concatenate([each[:known] for each in rows]), np.concatenate([each[known:] for each in rows])


def plain_net(n_classes, width=56):
    from torch import nn

    layers, channels = [], 2
    for dilation in (1, 2, 4, 8):
        layers += [nn.Conv1d(channels, width, 5, padding=2 * dilation, dilation=dilation, padding_mode="circular"),
                   nn.BatchNorm1d(width), nn.ReLU()]  # fmt: skip
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(width, n_classes))


def train(net, contours, classes, steps, seed, as_input):
    import torch

    rng = np.random.default_rng(seed)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=steps)
    net.train()
    for _ in range(steps):
        rows = rng.choice(len(contours), 64, replace=False)
        batch = np.stack([np.roll(each, rng.integers(POINTS)) for each in contours[rows]])
        batch = batch * np.exp(1j * rng.uniform(0, 2 * np.pi, (len(rows), 1)))
        flipped = rng.random(len(rows)) < 0.5
        batch[flipped] = batch[flipped, ::-1].conj()
        # Small smooth bends, for both networks: five examples are few.
        knots = rng.normal(size=(len(rows), 7)) + 1j * rng.normal(size=(len(rows), 7))
        bend = np.fft.ifft(np.pad(knots, ((0, 0), (0, POINTS - 7))), axis=1) * POINTS
        batch = batch + 0.03 * bend * batch.std(1, keepdims=True)
        loss = torch.nn.functional.cross_entropy(
            net(as_input(batch)), torch.as_tensor(classes[rows]).long(), label_smoothing=0.1
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return net.eval()


def complex_input(batch):
    import torch

    return torch.from_numpy(batch.astype(np.complex64))


def real_input(batch):
    import torch

    batch = batch - batch.mean(1, keepdims=True)
    batch = batch / np.sqrt(np.square(np.abs(batch)).mean(1, keepdims=True))
    return torch.from_numpy(np.stack([batch.real, batch.imag], 1).astype(np.float32))


def classify(options):
    import torch
    from sklearn.svm import SVC

    results = {}
    for seed in range(options.first, options.first + options.splits):
        curves, classes = outlines(seed)
        known, tested = split(classes, seed)

        def note(name, answers, classes=classes, tested=tested):
            results.setdefault(name, []).append(float((answers == classes[tested]).mean()))

        squares = outline_distances(curves, curves[known]).distances ** 2
        note("orbit distance, nearest", classes[known][squares[tested].argmin(1)])
        kernel = np.exp(-squares / np.median(squares[known]))
        machine = SVC(C=100, kernel="precomputed").fit(kernel[known], classes[known])
        note("orbit distance, support vectors", machine.predict(kernel[tested]))
        moduli = np.abs(np.fft.fft(curves, axis=1)) * np.abs(np.fft.fftfreq(POINTS, 1 / POINTS)) ** 0.5
        moduli /= np.linalg.norm(moduli, axis=1, keepdims=True)
        gaps = np.square(moduli[tested][:, None] - moduli[known]).sum(2)
        note("moduli of Fourier coefficients, nearest", classes[known][gaps.argmin(1)])
        if options.steps:
            for name, make, as_input in (
                ("complex circular network", lambda: complex_circular_net(65, width=24, depth=4), complex_input),
                ("peer: augmented circular convolutions", lambda: plain_net(65), real_input),
            ):
                torch.manual_seed(seed)
                net = train(make(), curves[known], classes[known], options.steps, seed, as_input)
                count = sum(parameter.numel() for parameter in net.parameters())
                with torch.no_grad():
                    note(f"{name} ({count:,})", net(as_input(curves[tested])).argmax(1).numpy())
        print(f"split {seed}: " + "; ".join(f"{name} {values[-1]:.3f}" for name, values in results.items()), flush=True)
    print("| from 5 examples a class | accuracy | splits |\n|---|---|---|")
    for name, values in results.items():
        print(f"| {name} | {np.mean(values):.3f} | {', '.join(f'{value:.3f}' for value in values)} |")


def cluster(options):
    from unpose import InvariantClustering
    from unpose.cluster import agreement_with_classes
    from unpose.data import posed

    images, classes = load("mpeg7_shapes.npz", "x", "y")
    print("| kinds | pixels | pixels and outlines | weight of pixels |\n|---|---|---|---|")
    for seed in range(options.seeds):
        rng = np.random.default_rng(100 + seed)
        rows = np.isin(classes, rng.choice(65, options.kinds, replace=False))
        small = np.pad(images[rows], ((0, 0), (16, 16), (16, 16))).astype(np.float32) / 255
        small = small.reshape(len(small), 48, 2, 48, 2).mean((2, 4))
        turned = posed(small, "se2+mirror", random_state=seed, max_shift=3.0).images
        found = []
        for features in ("pixels", "contour"):
            model = InvariantClustering(options.kinds, group="se2+mirror", features=features).fit(turned)
            labels = [str(each) for each in classes[rows]]
            found.append(agreement_with_classes(labels, model.labels_)["accuracy"])
        share = model.features_.pixel_share if model.features_ is not None else 1.0
        print(f"| {options.kinds} (seed {seed}) | {found[0]:.3f} | {found[1]:.3f} | {share:.2f} |", flush=True)


def features_of_masks(options):
    """Nearest neighbours by the vectors that clustering uses, for comparison."""
    images, classes = load("mpeg7_shapes.npz", "x", "y")
    vectors = outline_features(images)
    known, tested = split(classes, options.first)
    gaps = np.square(vectors[tested][:, None] - vectors[known]).sum(2)
    print(f"outlines traced from 64-pixel masks: {(classes[known][gaps.argmin(1)] == classes[tested]).mean():.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["classify", "cluster", "masks"])
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--first", type=int, default=10)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--kinds", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    {"classify": classify, "cluster": cluster, "masks": features_of_masks}[options.what](options)


if __name__ == "__main__":
    main()
