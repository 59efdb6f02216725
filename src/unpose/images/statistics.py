"""Statistics of an image that do not change when it is turned by quarter turns or mirrored.

The image is filtered with circular harmonics, ``g(|f|) exp(i k angle(f))``, at four scales and five angular frequencies
k. Turning the image turns the filtered maps and multiplies them by the phase ``exp(i k phi)``, so averages over all
pixels of the following do not change: moduli; products of two maps of the same k at two scales; products of three maps
whose frequencies add up to zero (a local bispectrum); and correlations of moduli. The mirror conjugates all maps, so
real parts are kept. Rings about the centre of the image tell where things are. Quarter turns and mirrors are exact up
to rounding; other rotations are limited by interpolation.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from unpose.compiled import worker_pool

__all__ = ["count_statistics", "image_statistics"]

LARGEST_SIDE = 48
"""Longest side in pixels at which statistics are computed; larger images are averaged down."""
_SCALES = (1.0, 2.0, 4.0, 8.0)
_FREQUENCIES = 5
_BANDWIDTH = 0.6
"""Standard deviation of the radial filters, in octaves."""
_RINGS, _RING_FREQUENCIES = 8, 7
_QUANTILES = (0.02, 0.1, 0.25, 0.5, 0.75, 0.9, 0.98)
_CHUNK = 16
"""Images that a thread processes at once, to bound memory."""
_SMALL = 1e-6

_MAPS = [(scale, k) for scale in range(len(_SCALES)) for k in range(_FREQUENCIES)]
_PAIRS = [
    (_MAPS.index((fine, k)), _MAPS.index((coarse, k)))
    for fine in range(len(_SCALES))
    for coarse in range(fine + 1, len(_SCALES))
    for k in range(_FREQUENCIES)
]


def _triples() -> list[tuple[int, int, int]]:
    """Maps (i, j, l) with ``k_i + k_j = k_l``: of one scale, and of two neighbouring scales."""
    found = []
    for scale in range(len(_SCALES)):
        for a in range(1, _FREQUENCIES):
            for b in range(1, _FREQUENCIES - a):
                sums = [(scale, a), (scale, b), (scale, a + b)]
                if a <= b:
                    found.append(sums)
                if scale > 0:
                    found.append([(scale, a), (scale - 1, b), (scale, a + b)])
                    found += [[(scale, a), (scale, b), (scale - 1, a + b)]] if a <= b else []
    return [(_MAPS.index(one), _MAPS.index(two), _MAPS.index(three)) for one, two, three in found]


_TRIPLES = _triples()


def count_statistics(channels: int) -> int:
    """Return the length of the vectors that :func:`image_statistics` computes.

    Parameters
    ----------
    channels : int
        Number of channels of the images.

    Returns
    -------
    int

    Examples
    --------
    >>> count_statistics(1)
    425
    """
    n_maps, n_scales = len(_MAPS), len(_SCALES)
    per_channel = (
        2 + len(_QUANTILES) + 3 * n_maps + _FREQUENCIES * n_scales * (n_scales - 1) // 2 + len(_PAIRS) + len(_TRIPLES)
        + n_scales + n_maps * (n_maps - 1) // 2 + _RINGS * _RING_FREQUENCIES
    )  # fmt: skip
    return channels * per_channel + channels * (channels - 1) // 2


def image_statistics(images: Tensor) -> Tensor:
    """Compute statistics of texture and shape that do not change under quarter turns and mirrors.

    The background (the median of the border of each channel) is subtracted first, and the image is padded to a square.
    Statistics that grow with contrast grow linearly with it, or with its square root.

    Parameters
    ----------
    images : (n, c, h, w) tensor
        Of any size; larger ones than 48 pixels are averaged down.

    Returns
    -------
    (n, d) tensor
        With ``d = count_statistics(c)``.

    Examples
    --------
    >>> images = torch.rand(2, 1, 9, 13)
    >>> turned = torch.rot90(images, 1, (2, 3))
    >>> bool((image_statistics(turned) - image_statistics(images)).abs().max() < 1e-4)
    True
    """
    chunks, threads = images.split(_CHUNK), torch.get_num_threads()
    if threads == 1 or images.is_cuda or images.requires_grad:
        return torch.cat([_of_chunk(chunk) for chunk in chunks])
    with worker_pool(min(threads, len(chunks))) as pool:  # torch's own threads would round as their number says
        return torch.cat(list(pool.map(_of_chunk, chunks)))


def _of_chunk(images: Tensor) -> Tensor:
    n, channels = images.shape[:2]
    pixels, centre = _on_square(images)  # (n, c, s, s)
    found = _of_grey(pixels.flatten(0, 1), centre).reshape(n, -1)  # channel after channel
    if channels == 1:
        return found
    one, two = torch.triu_indices(channels, channels, 1, device=images.device)
    return torch.cat([found, _correlations(pixels.flatten(2))[:, one, two]], dim=1)


def _on_square(images: Tensor) -> tuple[Tensor, tuple[float, float]]:
    """Subtract the background and pad with zeros to a square; also returns row and column of the image's centre.

    Squares are averaged down to ``LARGEST_SIDE`` pixels. If one side of a larger image is odd and the other even, its
    centre is half a pixel off that of the square, and quarter turns are not quite exact.
    """
    height, width = images.shape[-2:]
    border = torch.cat([images[..., 0, :], images[..., -1, :], images[..., :, 0], images[..., :, -1]], dim=-1)
    # The mean of the lower and the upper median, which does not change when dark and light are exchanged.
    level = (border.median(-1).values - (-border).median(-1).values) / 2
    side = max(height, width)
    pixels = images.new_zeros((*images.shape[:2], side, side))
    top, left = (side - height) // 2, (side - width) // 2
    pixels[..., top : top + height, left : left + width] = images - level[..., None, None]
    factor = min(1.0, LARGEST_SIDE / side)
    centre = factor * (top + height / 2) - 0.5, factor * (left + width / 2) - 0.5
    return (adaptive_avg_pool2d(pixels, LARGEST_SIDE) if side > LARGEST_SIDE else pixels), centre


def _of_grey(pixels: Tensor, centre: tuple[float, float]) -> Tensor:
    """(m, s, s) -> (m, d)"""
    side, n_scales = pixels.shape[-1], len(_SCALES)
    bands, angles = _radial_filters(side, pixels), _angle_of_frequency(side, pixels)
    harmonics = torch.exp(1j * torch.arange(_FREQUENCIES, device=pixels.device)[:, None, None] * angles)
    filters = (bands[:, None] * harmonics).flatten(0, 1).to(torch.promote_types(pixels.dtype, torch.complex64))
    maps = torch.fft.ifft2(torch.fft.fft2(pixels)[:, None] * filters).flatten(2)  # (m, maps, p)
    moduli = maps.abs()
    phases = maps / (moduli + _SMALL * 1e-6)
    flat = pixels.flatten(1)
    quantiles = torch.quantile(flat, flat.new_tensor(_QUANTILES), dim=1).T
    brightness = torch.cat([flat.mean(1, keepdim=True), flat.std(1, keepdim=True), quantiles], dim=1)
    norms = torch.cat([(moduli**power).mean(2) ** (1 / power) for power in (1, 2, 4)], dim=1)
    # Energy of each modulus in each coarser band, by Parseval's theorem.
    power = torch.fft.fft2(moduli.unflatten(2, (side, side))).abs().square().flatten(2)
    energy = (power @ bands.square().flatten(1).T.to(power)).sqrt() / side**2  # (m, maps, scales)
    modulated = [energy[:, i, coarse] for i, (fine, _) in enumerate(_MAPS) for coarse in range(fine + 1, n_scales)]
    # Roots of the moduli keep all products linear in the contrast of the image.
    halves, thirds = phases * moduli.sqrt(), phases * moduli ** (1 / 3)
    pairs = [(halves[:, i] * halves[:, j].conj()).real.mean(1) for i, j in _PAIRS]
    triples = [(thirds[:, i] * thirds[:, j] * thirds[:, k].conj()).real.mean(1) for i, j, k in _TRIPLES]
    bright = [maps[:, _MAPS.index((scale, 0))].real.clamp(min=0).mean(1) for scale in range(n_scales)]
    one, two = torch.triu_indices(len(_MAPS), len(_MAPS), 1, device=pixels.device)
    correlations = _correlations(moduli)[:, one, two]
    positive = torch.cat([norms, torch.stack(modulated, 1), _rings(pixels, centre)], dim=1)
    return torch.cat(
        [brightness, (positive + _SMALL).sqrt(), torch.stack([*pairs, *triples, *bright], 1), correlations], dim=1
    )


def _radial_filters(side: int, like: Tensor) -> Tensor:
    """Band-pass filters of about an octave, for each scale on the grid of frequencies: (scales, s, s)."""
    frequency = torch.fft.fftfreq(side, device=like.device, dtype=torch.float64)
    radius = torch.hypot(frequency[:, None], frequency[None, :])
    centres = 0.25 / torch.tensor(_SCALES, device=like.device, dtype=torch.float64)[:, None, None]
    octaves = torch.log2(radius.clamp(min=1e-9) / centres)
    # Without the Nyquist frequency, which has no angle, all filters turn exactly with the image.
    return torch.exp(-0.5 * (octaves / _BANDWIDTH) ** 2) * ((radius > 0) & (radius < 0.5))


def _angle_of_frequency(side: int, like: Tensor) -> Tensor:
    frequency = torch.fft.fftfreq(side, device=like.device, dtype=torch.float64)
    return torch.atan2(frequency[:, None].expand(side, side), frequency[None, :].expand(side, side))


def _rings(pixels: Tensor, centre: tuple[float, float]) -> Tensor:
    """Moduli of the angular Fourier coefficients on rings about the centre: (m, s, s) -> (m, frequencies * rings)."""
    side = pixels.shape[-1]
    axis = torch.arange(side, device=pixels.device, dtype=torch.float64)
    y, x = (axis - centre[0])[:, None].expand(side, side), (axis - centre[1])[None, :].expand(side, side)
    radius = torch.hypot(x, y) / (side / 2)
    middles = (torch.arange(_RINGS, device=pixels.device)[:, None, None] + 0.5) / _RINGS
    rings = torch.exp(-0.5 * ((radius - middles) * _RINGS / _BANDWIDTH) ** 2)
    rings = rings / rings.sum((1, 2), keepdim=True)
    k = torch.arange(_RING_FREQUENCIES, device=pixels.device)[:, None, None, None]
    rings = rings * ((radius > 0) | (k == 0))  # the centre has no angle
    flat, turns = pixels.flatten(1), k * torch.atan2(y, x)
    parts = [flat @ (rings * wave).flatten(0, 1).flatten(1).T.to(flat) for wave in (torch.cos(turns), torch.sin(turns))]
    return torch.hypot(parts[0], parts[1])


def _correlations(rows: Tensor) -> Tensor:
    """Correlation coefficients of the rows: (m, r, p) -> (m, r, r); zero for constant rows."""
    centred = rows - rows.mean(2, keepdim=True)
    norms = centred.norm(dim=2, keepdim=True) + _SMALL * math.sqrt(rows.shape[2])
    return (centred / norms) @ (centred / norms).mT
