"""Registration methods of other packages, behind one calling convention.

Every peer is a function ``name(moving, fixed) -> pose``. Images are float32 arrays (h, w) in [0, 1] with a
zero background. Coordinates are (x, y) in pixels from the image centre, x right and y down. A pose is a 3x3
float64 matrix ``dst_from_src`` on (x, y, 1) that brings ``moving`` onto ``fixed``; a rotation by +angle is
counter-clockwise as seen on screen, with the linear part [[cos, sin], [-sin, cos]].

The settings were chosen on MNIST training digits. Optional packages are imported inside the functions, so
this module needs numpy, scipy and scikit-image only; ``available`` says what is missing.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import lru_cache
from types import ModuleType

import numpy as np
import scipy.fft
import scipy.ndimage
import scipy.sparse
from numpy.typing import NDArray
from skimage.registration import phase_cross_correlation
from skimage.transform import warp as skimage_warp
from skimage.transform import warp_polar

Image = NDArray[np.float32]
Pose = NDArray[np.float64]
Peer = Callable[[Image, Image], Pose]


# ---------------------------------------------------------------------------------------------------- poses


def rigid(degrees: float, x: float = 0.0, y: float = 0.0) -> Pose:
    """Pose that rotates by `degrees` (counter-clockwise on screen) about the centre, then shifts."""
    c, s = np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))
    return np.array([[c, s, x], [-s, c, y], [0.0, 0.0, 1.0]])


def _centred_from_pixel(shape: tuple[int, ...]) -> Pose:
    """Matrix from (column, row) to (x, y) from the image centre."""
    return np.array([[1.0, 0.0, -(shape[1] - 1) / 2], [0.0, 1.0, -(shape[0] - 1) / 2], [0.0, 0.0, 1.0]])


def keys_warp(image: Image, pose: Pose) -> Image:
    """`image` seen in destination coordinates: Keys cubic (a = -1/2), zero outside."""
    to_centred = _centred_from_pixel(image.shape)
    inverse_map = np.linalg.inv(to_centred) @ np.linalg.inv(pose) @ to_centred
    return skimage_warp(image, inverse_map, order=3, mode="constant", cval=0.0, clip=False).astype(np.float32)


def ncc(a: NDArray, b: NDArray) -> float:
    """Cosine <a, b> / (|a| |b|) without mean subtraction; 0 where an image is empty."""
    norms = float(np.linalg.norm(a)) * float(np.linalg.norm(b))
    return float(np.vdot(a, b)) / norms if norms > 0 else 0.0


def success(moving: Image, fixed: Image, pose: Pose, true_pose: Pose, warp: Callable[[Image, Pose], Image]) -> bool:
    """Whether `pose` explains `fixed` at least 95 % as well as the true pose does, by NCC of the images.

    It is judged on images, not on poses, because a symmetric object has several right poses.
    """
    return ncc(warp(moving, pose), fixed) >= 0.95 * ncc(warp(moving, true_pose), fixed)


def pose_error(pose: Pose, true_pose: Pose) -> tuple[float, float]:
    """Angle (degrees) and distance (pixels) between two rigid poses.

    With ``d = inverse(true_pose) @ pose``, the motion of the source frame that is left over: the angle is
    the absolute rotation of `d`, in [0, 180]; the distance is the length of `d`'s translation, that is how
    far `d` moves the source centre (0, 0). As `true_pose` preserves lengths, this is also the distance
    between the two poses' images of (0, 0) in the destination.
    """
    d = np.linalg.inv(true_pose) @ pose
    return float(np.abs(np.rad2deg(np.arctan2(d[0, 1], d[0, 0])))), float(np.hypot(d[0, 2], d[1, 2]))


# ---------------------------------------------------------------------------------------------------- peers


def _polar_spectrum(image: Image, size: int, n_angles: int, n_radii: int) -> NDArray[np.float64]:
    """Log-polar FFT magnitude over a half circle, (n_angles, n_radii kept), each radius with zero mean."""
    # Zero mean and zero padding instead of a Hann window: the background is zero already, and a window would
    # break the shift invariance of the magnitude.
    spectrum = np.abs(scipy.fft.fftshift(scipy.fft.fft2(image - image.mean(), (size, size))))
    polar = warp_polar(
        spectrum,
        center=(size // 2, size // 2),
        radius=size // 2,
        output_shape=(2 * n_angles, n_radii),
        scaling="log",
    )[:n_angles]
    # Drop the lowest frequencies: they have no direction, and contain the padded mean.
    radius = (size / 2) ** (np.arange(n_radii) / n_radii)
    polar = polar[:, radius >= 0.05 * size]
    return polar - polar.mean(axis=0)


def fourier_mellin(moving: Image, fixed: Image, n_angles: int = 180) -> Pose:
    """Fourier-Mellin after scikit-image's recipe: log-polar spectra for the angle, then phase correlation.

    Differences from the gallery example, all in its favour here: the scale is fixed to 1, so that only the
    zero-scale line of the log-polar correlation is searched; the spectrum is zero-padded (its eighth of the
    radius would be 5 pixels on small images); the peak is refined by a parabola; the 180-degree ambiguity is
    resolved by trying both and keeping the better NCC. The shift is ``phase_cross_correlation`` to 0.1 pixel
    with ``normalization=None``, as in that example.
    """
    size = max(128, scipy.fft.next_fast_len(2 * max(fixed.shape), real=True))
    a, b = (scipy.fft.rfft(_polar_spectrum(im, size, n_angles, 64), axis=0) for im in (moving, fixed))
    curve = scipy.fft.irfft((a * b.conj()).sum(axis=1), n_angles)
    peak = int(curve.argmax())
    left, top, right = curve[peak - 1], curve[peak], curve[(peak + 1) % n_angles]
    bend = left - 2 * top + right
    half_turn = 180.0 / n_angles * (peak + (0.5 * (left - right) / bend if bend != 0 else 0.0))
    poses = []
    for degrees in (half_turn, half_turn + 180.0):
        turned = keys_warp(moving, rigid(degrees))
        (y, x), _, _ = phase_cross_correlation(fixed, turned, upsample_factor=10, normalization=None)
        poses.append(rigid(degrees, x, y))
    return max(poses, key=lambda pose: ncc(keys_warp(moving, pose), fixed))


def _load_imreg() -> ModuleType:
    """imreg_dft.imreg, pointed at scipy.ndimage instead of the deprecated scipy.ndimage.interpolation."""
    imreg_module = importlib.import_module("imreg_dft.imreg")
    imreg_module.ndii = scipy.ndimage
    return imreg_module


def imreg(moving: Image, fixed: Image) -> Pose:
    """imreg_dft.similarity with the scale held at 1, otherwise its defaults.

    imreg_dft 2.0.0 needs no repair under numpy 2 (its ``np.bool`` exists again); its use of the deprecated
    ``scipy.ndimage.interpolation`` is redirected to ``scipy.ndimage`` on loading.

    The package places the image in a canvas 1.2 times as large, rotates that with a growing output, and
    crops; each step that changes a side length by an odd number moves the image by half a pixel. The
    reported shift is measured after those steps, so they are put back here; on 40-pixel images a naive
    reading fails 4 of 10 pairs for that half pixel. Where it rejects a pair (ValueError): identity.
    """
    try:
        result = _load_imreg().similarity(
            fixed.astype(np.float64), moving.astype(np.float64), constraints={"scale": [1.0, 0.0]}
        )
    except ValueError:
        return np.eye(3)
    # One iteration finds the angle within [-90, 90]; the package then also tries the half turn, of the
    # already cropped image.
    flip = 180.0 if abs(result["angle"]) > 90 else 0.0
    first = result["angle"] - flip
    shape = np.array(moving.shape)
    canvas = np.round(shape * 1.2).astype(int)
    turned = np.array(scipy.ndimage.rotate(np.zeros(canvas, np.float32), first, order=0).shape)
    into, out = -0.5 * ((canvas - shape) % 2), 0.5 * ((turned - shape) % 2)
    y, x = result["tvec"]
    return rigid(flip, x, y) @ rigid(first, out[1], out[0]) @ rigid(0.0, into[1], into[0])


def stackreg(moving: Image, fixed: Image) -> Pose:
    """pystackreg (TurboReg) with RIGID_BODY: a local pyramid search that starts from the identity."""
    from pystackreg import StackReg

    fixed_to_moving = StackReg(StackReg.RIGID_BODY).register(fixed, moving)
    to_centred = _centred_from_pixel(moving.shape)
    return to_centred @ np.linalg.inv(fixed_to_moving) @ np.linalg.inv(to_centred)


def sitk(moving: Image, fixed: Image, n_starts: int = 1) -> Pose:
    """SimpleITK: Euler2DTransform, moments initialisation, correlation metric, three levels, one thread.

    The initialiser matches the centres of mass and leaves the angle at 0. With ``n_starts > 1`` the
    registration is repeated from that many equally spaced angles and the best metric value is kept.
    """
    import SimpleITK as itk

    itk.ProcessObject.SetGlobalDefaultNumberOfThreads(1)
    # A start that leaves the image warns once per step; its result is not chosen.
    itk.ProcessObject.SetGlobalWarningDisplay(False)

    def to_itk(image: Image) -> object:
        out = itk.GetImageFromArray(np.ascontiguousarray(image, np.float32))
        out.SetOrigin((-(image.shape[1] - 1) / 2, -(image.shape[0] - 1) / 2))
        return out

    target, source = to_itk(fixed), to_itk(moving)
    moments = itk.CenteredTransformInitializerFilter.MOMENTS
    first = itk.CenteredTransformInitializer(target, source, itk.Euler2DTransform(), moments)
    best_value, best = np.inf, itk.Euler2DTransform(first)
    for start in range(n_starts):
        transform = itk.Euler2DTransform(first)
        transform.SetAngle(2 * np.pi * start / n_starts)
        method = itk.ImageRegistrationMethod()
        method.SetNumberOfThreads(1)
        method.SetMetricAsCorrelation()
        method.SetMetricSamplingStrategy(method.NONE)
        method.SetInterpolator(itk.sitkLinear)
        # Smoothing without downscaling, because the images are small.
        method.SetShrinkFactorsPerLevel([1, 1, 1])
        method.SetSmoothingSigmasPerLevel([3.0, 1.5, 0.0])
        method.SetOptimizerAsRegularStepGradientDescent(1.0, 1e-3, 100, relaxationFactor=0.5)
        method.SetOptimizerScalesFromPhysicalShift()
        method.SetInitialTransform(transform, inPlace=True)
        try:
            method.Execute(target, source)
        except RuntimeError:  # no overlap left
            continue
        if method.GetMetricValue() < best_value:
            best_value, best = method.GetMetricValue(), transform
    # The transform takes fixed points to moving points; three points give its matrix.
    origin, along_x, along_y = (np.array(best.TransformPoint(point)) for point in ((0.0, 0.0), (1.0, 0.0), (0.0, 1.0)))
    fixed_to_moving = np.eye(3)
    fixed_to_moving[:2] = np.stack([along_x - origin, along_y - origin, origin], axis=1)
    return np.linalg.inv(fixed_to_moving)


def _keys(t: NDArray[np.float64]) -> NDArray[np.float64]:
    """Keys' cubic kernel with a = -1/2."""
    t = np.abs(t)
    near = 1.5 * t**3 - 2.5 * t**2 + 1
    far = -0.5 * t**3 + 2.5 * t**2 - 4 * t + 2
    return np.where(t <= 1, near, np.where(t < 2, far, 0.0))


@lru_cache(maxsize=4)
def _rotations(shape: tuple[int, int], n_angles: int) -> scipy.sparse.csr_array:
    """Sparse (n_angles * h * w, h * w) matrix: all rotations of a flattened image, Keys interpolation."""
    h, w = shape
    y, x = np.mgrid[:h, :w].reshape(2, -1) - np.array([[(h - 1) / 2], [(w - 1) / 2]])
    angle = 2 * np.pi * np.arange(n_angles)[:, None] / n_angles
    # Source position of every destination pixel: the inverse rotation.
    column = (np.cos(angle) * x - np.sin(angle) * y + (w - 1) / 2).ravel()
    row = (np.sin(angle) * x + np.cos(angle) * y + (h - 1) / 2).ravel()
    near = np.arange(-1, 3)
    columns, rows = np.floor(column)[:, None] + near, np.floor(row)[:, None] + near
    weight = _keys(row[:, None] - rows)[:, :, None] * _keys(column[:, None] - columns)[:, None, :]
    inside = ((rows >= 0) & (rows < h))[:, :, None] & ((columns >= 0) & (columns < w))[:, None, :]
    source = (rows[:, :, None] * w + columns[:, None, :])[inside].astype(np.int32)
    target = np.broadcast_to(np.arange(len(row), dtype=np.int32)[:, None, None], inside.shape)[inside]
    values = weight[inside].astype(np.float32)
    return scipy.sparse.csr_array((values, (target, source)), shape=(len(row), h * w))


def fft_grid(moving: Image, fixed: Image, n_angles: int = 72) -> Pose:
    """Plain global search: every one of `n_angles` rotations, and by FFT every whole-pixel shift.

    The correlation is divided by the rotated image's norm. The rotation matrices are computed once per shape
    and kept.
    """
    h, w = fixed.shape
    turned = (_rotations((h, w), n_angles) @ moving.ravel()).reshape(n_angles, h, w)
    # Twice the size, so that no shift wraps around.
    padded = (scipy.fft.next_fast_len(2 * h - 1, real=True), scipy.fft.next_fast_len(2 * w - 1, real=True))
    norms = np.maximum(np.linalg.norm(turned, axis=(1, 2)), np.float32(1e-12))
    product = scipy.fft.rfft2(turned, padded).conj() * scipy.fft.rfft2(fixed, padded)
    scores = scipy.fft.irfft2(product, padded) / norms[:, None, None]
    a, y, x = np.unravel_index(int(scores.argmax()), scores.shape)
    y, x = (y if y < h else y - padded[0]), (x if x < w else x - padded[1])
    return rigid(360.0 * a / n_angles, x, y)


_PEERS: dict[str, tuple[Peer, str | None]] = {
    "fourier_mellin": (fourier_mellin, None),
    "imreg": (imreg, "imreg_dft.imreg"),
    "stackreg": (stackreg, "pystackreg"),
    "sitk": (sitk, "SimpleITK"),
    "fft_grid": (fft_grid, None),
}


def available() -> dict[str, Peer | str]:
    """Each peer by name: its function, or the reason (a string) why it cannot run here."""
    peers: dict[str, Peer | str] = {}
    for name, (function, package) in _PEERS.items():
        try:
            if package is not None:
                importlib.import_module(package)
            peers[name] = function
        except ImportError as error:
            peers[name] = f"{package}: {error}"
    return peers
