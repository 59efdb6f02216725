"""Answers of a model that are kept by the content of the images: long audits continue where they were stopped.

Every measure of an audit calls the model itself, often on the same images. Here each image is looked up first, so the
model sees it once, whichever measure asks. With a folder, answers are on disk after each batch; a killed audit calls
the model only for the rest, and ends with the same numbers.
"""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unpose.audit import ModelCallError
from unpose.audit.calls import checked_output, evaluation, first_line
from unpose.files import output, write_text

_KEY_BYTES = 16


def _as_tensor(outputs: Any, n: int) -> Tensor:
    """The outputs as a tensor on the CPU, checked for everything but NaN."""
    if isinstance(outputs, np.ndarray):
        outputs = torch.from_numpy(outputs)
    if isinstance(outputs, Tensor) and outputs.is_floating_point():
        checked_output(torch.nan_to_num(outputs), n, "the model")
        outputs = outputs.float() if outputs.dtype == torch.bfloat16 else outputs  # files of NumPy have no bfloat16
        return outputs.detach().to("cpu")
    return checked_output(outputs, n, "the model", label_maps=True).detach().to("cpu")


class RememberedCalls:
    """A model that is called once for each image; a callable for :mod:`unpose.audit`.

    Images on which the model raises, or returns NaN or infinity, get zeros and are listed in :attr:`failed_rows`, so
    that an audit can go on without them; :meth:`with_gaps` gives NaN instead, and :meth:`strict` raises. If the model
    raises on every image of a batch, the call fails.

    Parameters
    ----------
    model : callable
        From a tensor (n, c, h, w) to a tensor or array (n, ...). A torch module is called in evaluation mode.
    folder : path, optional
        Where answers are kept; must exist. By default they are kept in memory only. Answers of an earlier process are
        used if the model still gives the same to the first images among them that it is asked for.
    batch_size : int, default 64
        Images per call of the model.
    memory : int, optional
        With a folder, the answers that are held in memory, in bytes; others are read again. By default all of them.

    Attributes
    ----------
    progress : callable or None
        Called with the number of images answered so far, whether by the model or from memory.
    failed_rows : dict of int to str
        Position, in the calls so far, of each image that failed in any of them, and the first message.
    takes_one : bool
        Whether the model turned out to take one image at a time only.

    Examples
    --------
    >>> calls = []
    >>> f = RememberedCalls(lambda x: calls.append(len(x)) or x.mean((2, 3)))
    >>> images = torch.rand(5, 2, 8, 8)
    >>> f(images).equal(f(images)), calls
    (True, [5])
    """

    def __init__(
        self,
        model: Callable[[Tensor], Any],
        folder: Path | None = None,
        *,
        batch_size: int = 64,
        memory: int | None = None,
    ) -> None:
        self.model, self.folder, self.batch_size, self._memory = model, folder, batch_size, memory
        self.progress: Callable[[int], None] | None = None
        self._place: dict[bytes, tuple[int, int]] = {}  # key -> number of the batch, row
        self._batches: dict[int, Tensor] = {}
        self._count = 0
        self._failures: dict[bytes, str] = {}
        self._answered = 0
        self.takes_one = False
        self.failed_rows: dict[int, str] = {}
        for path in sorted(folder.glob("*.npz")) if folder is not None else []:
            self._read(path)
        self._unconfirmed = bool(self._place)

    def __call__(self, images: Tensor) -> Tensor:
        """(n, c, h, w) -> (n, ...)"""
        answers, failed = self._answers(images)
        for row, message in failed.items():
            self.failed_rows.setdefault(row, message)
        return answers

    def with_gaps(self, images: Tensor) -> Tensor:
        """(n, c, h, w) -> (n, ...); NaN for images on which the model fails, which are not listed."""
        answers, failed = self._answers(images)
        if failed:
            answers = answers if answers.is_floating_point() else answers.double()
            answers[list(failed)] = torch.nan
        return answers

    def strict(self, images: Tensor) -> Tensor:
        """(n, c, h, w) -> (n, ...); raises a ModelCallError if the model fails on any of the images."""
        answers, failed = self._answers(images)
        if failed:
            message = next(iter(failed.values()))
            raise ModelCallError(f"the model fails on {len(failed)} of {len(images)} pictures: {message}")
        return answers

    def fresh(self, images: Tensor) -> Tensor:
        """(n, c, h, w) -> (n, ...); what the model answers now, which is not kept."""
        return self._outputs(images, self.model.fresh if isinstance(self.model, OutputView) else self.model)[0]

    def _answers(self, images: Tensor) -> tuple[Tensor, dict[int, str]]:
        """The answers (n, ...), zeros where the model failed, and the rows of these with their messages."""
        parts, failed = [], {}
        for start in range(0, len(images), self.batch_size):
            part = images[start : start + self.batch_size]
            keys = [_key(image) for image in part]
            if self._unconfirmed:
                self._confirm(part, keys)
            if not all(key in self._place for key in keys):
                self._ask(part, keys)
            parts.append(self._known_answers(keys))
            for row, key in enumerate(keys, start):
                if key in self._failures:
                    failed[row] = self._failures[key]
            self._answered += len(part)
            if self.progress is not None:
                self.progress(self._answered)
        return torch.cat(parts), failed

    def restart(self) -> None:
        """Forget the positions of failed images and the number of answers; the answers themselves are kept."""
        self.failed_rows, self._answered = {}, 0

    def result(self, key: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What a measure returns that calls the model itself, such as one of gradients; kept beside the answers."""
        file = None
        if self.folder is not None:
            file = self.folder / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
            if file.exists():
                kept: dict[str, Any] = json.loads(file.read_text())
                return kept
        found = measure()
        if file is not None:
            write_text(file, json.dumps(found))
        return found

    def _confirm(self, images: Tensor, keys: list[bytes]) -> None:
        """Ask the model once more for answers from an earlier process; if they differ, it is another model now.

        Of a batch with some of the known images, these are compared; after one with none of them the next decides.
        """
        known = [row for row, key in enumerate(keys) if key in self._place]
        if not known:
            return
        self._unconfirmed = False
        kept = self._known_answers([keys[row] for row in known])
        fresh = self._outputs(images, self.model)[0][known]
        if kept.shape != fresh.shape or not torch.allclose(kept.double(), fresh.double(), rtol=1e-4, atol=1e-6):
            for path in self.folder.iterdir() if self.folder is not None else []:
                path.unlink()
            self._place, self._batches, self._failures, self._count = {}, {}, {}, 0

    def _ask(self, images: Tensor, keys: list[bytes]) -> None:
        outputs, failed = self._outputs(images, self.model)
        messages = {key: message for key, message in zip(keys, failed, strict=True) if message}
        self._keep(self._count, keys, outputs, messages)
        if self.folder is not None:
            with output(self.folder / f"{self._count - 1:06d}.npz") as stream:
                kept = np.frombuffer(b"".join(keys), np.uint8).reshape(-1, _KEY_BYTES)
                text = json.dumps({key.hex(): message for key, message in messages.items()})
                np.savez(stream, keys=kept, outputs=outputs.numpy(), failures=np.frombuffer(text.encode(), np.uint8))

    def _outputs(self, images: Tensor, model: Callable[[Tensor], Any]) -> tuple[Tensor, list[str]]:
        """The answers (n, ...), zeros where the model failed, and the message of each failure."""
        with evaluation(model):
            if not self.takes_one and (whole := self._whole(images, model)) is not None:
                return _without_nan(whole)
            answers: dict[int, Tensor] = {}
            failed = []
            last_error = None
            for i, image in enumerate(images):
                try:
                    (answers[i],), (message,) = _without_nan(_as_tensor(model(image[None].clone()), 1))
                except Exception as error:
                    message, last_error = first_line(error), error
                failed.append(message)
        if not answers:
            # A model that has stopped working altogether: no image is to blame, and nothing is kept.
            text = "an image" if len(images) == 1 else f"{len(images)} images"
            raise ModelCallError(f"the model fails on {text} at once and on each alone: {message}") from last_error
        self.takes_one = self.takes_one or (len(images) > 1 and last_error is None)
        like = next(iter(answers.values()))
        return torch.stack([answers.get(i, torch.zeros_like(like)) for i in range(len(images))]), failed

    def _whole(self, images: Tensor, model: Callable[[Tensor], Any]) -> Tensor | None:
        """The answers to all images at once; None if the model fails, also with as many images as in other batches."""
        batches = [images]
        if (missing := self.batch_size - len(images)) > 0:
            batches.append(torch.cat([images, images[-1:].expand(missing, *images.shape[1:])]))
        for batch in batches:
            try:
                return _as_tensor(model(batch.clone()), len(batch))[: len(images)]
            except Exception:
                continue  # which image is to blame is found out one by one
        return None

    def _keep(self, number: int, keys: list[bytes], outputs: Tensor, failures: dict[bytes, str]) -> None:
        self._batches[number] = outputs
        self._count = number + 1
        self._place |= {key: (number, row) for row, key in enumerate(keys)}
        self._failures |= failures
        if self.folder is not None and self._memory is not None:
            held = sum(batch.nbytes for batch in self._batches.values())
            while held > self._memory and len(self._batches) > 1:
                held -= self._batches.pop(next(iter(self._batches))).nbytes

    def _known_answers(self, keys: list[bytes]) -> Tensor:
        return torch.stack([self._batch(number)[row] for number, row in (self._place[key] for key in keys)])

    def _batch(self, number: int) -> Tensor:
        if number not in self._batches and self.folder is not None:
            with np.load(self.folder / f"{number:06d}.npz", allow_pickle=False) as file:
                return torch.from_numpy(file["outputs"])
        return self._batches[number]

    def _read(self, path: Path) -> None:
        with np.load(path, allow_pickle=False) as file:
            keys = [row.tobytes() for row in file["keys"]]
            failures = json.loads(file["failures"].tobytes().decode())
            outputs = torch.from_numpy(file["outputs"])
        self._keep(int(path.stem), keys, outputs, {bytes.fromhex(key): text for key, text in failures.items()})


class OutputView:
    """One output of a model with several, whose answers are kept together; a callable for :mod:`unpose.audit`.

    ``together`` gives all outputs as rows of one matrix (n, d); ``columns`` are those of this output, whose answer to
    one image has this ``shape``.

    >>> both = RememberedCalls(lambda x: torch.cat([x.mean((2, 3)), x.amax((2, 3))], 1))
    >>> OutputView(both, slice(0, 2), (2,))(torch.ones(3, 2, 5, 5)).shape
    torch.Size([3, 2])
    """

    def __init__(self, together: RememberedCalls, columns: slice, shape: tuple[int, ...]) -> None:
        self._together, self._columns, self._shape = together, columns, shape

    def __call__(self, images: Tensor) -> Tensor:
        """(n, c, h, w) -> (n, ...); NaN for images on which the model fails"""
        return self._together.with_gaps(images)[:, self._columns].unflatten(1, self._shape)

    def fresh(self, images: Tensor) -> Tensor:
        """The answers that the model gives now."""
        return self._together.fresh(images)[:, self._columns].unflatten(1, self._shape)

    @property
    def takes_one(self) -> bool:
        """Whether the model turned out to take one image at a time only."""
        return self._together.takes_one


def _key(image: Tensor) -> bytes:
    """The fingerprint of an image (c, h, w): its shape, type and values."""
    array = np.ascontiguousarray(image.detach().cpu().numpy())
    start = f"{array.shape}{array.dtype}".encode()
    return hashlib.blake2b(start + array.tobytes(), digest_size=_KEY_BYTES).digest()


def _without_nan(outputs: Tensor) -> tuple[Tensor, list[str]]:
    """Outputs (n, ...) with zeros for the images whose answer is not finite, and a message for each of these."""
    finite = outputs.isfinite().flatten(1).all(1)  # (n,)
    if finite.all():
        return outputs, [""] * len(outputs)
    kept = torch.where(finite.reshape(-1, *(1,) * (outputs.ndim - 1)), outputs, torch.zeros_like(outputs))
    return kept, ["" if good else "the answer is NaN or infinite" for good in finite.tolist()]
