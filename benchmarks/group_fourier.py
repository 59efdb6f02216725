"""Fourier operators tied over quarter turns and mirrors: trained at 32 pixels, run at 64.

    python benchmarks/group_fourier.py [--steps 400] [--seeds 2] [--device cpu]

The task is a periodic nonlinear diffusion, u_t = 0.01 laplace(u) + u - u^3 on a square of side 2 pi for one unit of
time from smooth random fields (a pseudo-spectral solver at 128 pixels makes the data). Relative errors of
`group_fourier("p4m")` beside the same network without ties (group c1, wider, about as many parameters), from 64
training fields: at 32 pixels, on fields turned by a quarter, at 64 pixels, and the equivariance error under d4.
"""

import argparse

import torch

from unpose.audit import equivariance_error
from unpose.nn import group_fourier


def fields(n, seed):
    """Smooth random periodic fields at 128 pixels and what becomes of them, (n, 1, 128, 128) each."""
    generator = torch.Generator().manual_seed(seed)
    k = torch.fft.fftfreq(128, 1 / 128, dtype=torch.float64)
    square = k[:, None].square() + k.square()
    # Stripes that run mostly along one axis, so that training fields are not already seen at all angles.
    envelope = torch.exp(-k[:, None].square() / 30 - k.square() / 4)
    noise = torch.fft.fft2(torch.randn(n, 128, 128, generator=generator, dtype=torch.float64))
    start = torch.fft.ifft2(noise * envelope).real
    start = start / start.std((1, 2), keepdim=True)
    u, step = start, 0.01
    decay = torch.exp(-0.01 * square * step)
    for _ in range(100):
        u = torch.fft.ifft2(torch.fft.fft2(u + step * (u - u**3)) * decay).real
    return start[:, None].float(), u[:, None].float()


def relative(found, wanted):
    return float(((found - wanted).flatten(1).norm(dim=1) / wanted.flatten(1).norm(dim=1)).mean())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    x, y = (each.to(options.device) for each in fields(64, 1))
    test, truth = (each.to(options.device) for each in fields(64, 2))
    print("| network | parameters | 32 pixels | turned by 90 degrees | 64 pixels | error under d4 |")
    print("|---|---|---|---|---|---|")
    for name, group, width in (("tied over p4m", "p4m", 6), ("not tied", "c1", 17)):
        rows = []
        for seed in range(options.seeds):
            torch.manual_seed(seed)
            net = group_fourier(group, 1, 1, width=width, modes=8).to(options.device)
            optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=options.steps)
            generator = torch.Generator().manual_seed(seed)
            for _ in range(options.steps):
                pick = torch.randperm(64, generator=generator)[:16]
                given, wanted = x[pick][..., ::4, ::4], y[pick][..., ::4, ::4]
                gap = (net(given) - wanted).flatten(1).norm(dim=1) / wanted.flatten(1).norm(dim=1)
                optimizer.zero_grad()
                gap.mean().backward()
                optimizer.step()
                schedule.step()
            net.eval()
            with torch.no_grad():
                small, small_truth = test[..., ::4, ::4], truth[..., ::4, ::4]
                turned, turned_truth = (torch.rot90(each, 1, (-2, -1)) for each in (small, small_truth))
                row = [relative(net(small), small_truth), relative(net(turned), turned_truth),
                       relative(net(test[..., ::2, ::2]), truth[..., ::2, ::2])]  # fmt: skip
            row.append(equivariance_error(net.cpu(), small[:4].cpu(), "d4", "image").worst_exact)
            rows.append(row)
        count = sum(parameter.numel() for parameter in net.parameters())
        means = torch.tensor(rows).mean(0).tolist()
        print(f"| {name} | {count:,} | " + " | ".join(f"{value:.3g}" for value in means) + " |", flush=True)


if __name__ == "__main__":
    main()
