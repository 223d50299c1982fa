"""Image sets for input pipelines, drawn or read from the user's files, and the order of their samples.

A user's set is named by its format and the SHA-256 of its content, such as `mnist-` and 12 hex digits, and
never by its path, so the same data has the same name on every machine.
"""

from __future__ import annotations

import gzip
import math
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from io import BufferedIOBase, BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32
from zlib import error as BadDeflate

from benchbench import paths
from benchbench.arrays import Indices
from benchbench.errors import UnreadableInput, Unsupported
from benchbench.reading import read_at_most, read_file
from benchbench.workloads.draw import SEED, generator

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

DATA_PATHS = "ACCELBENCH_DATA"  # the files and folders of the user's sets, separated as in PATH
SYNTHETIC = "synthetic"
CHANNELS = {SYNTHETIC: 3, "mnist": 1, "cifar10": 3, "images": 3}  # by format
NAME = re.compile(rf"{SYNTHETIC}|(?:mnist|cifar10|images)-[0-9a-f]{{12}}")
SUFFIXES = (".jpeg", ".jpg", ".png")  # files in a folder of images
MAX_FILE_BYTES = 2**32
MAX_UNPACKED_BYTES = 2**30  # a few compressed megabytes may expand to this
CIFAR_SIDE, CIFAR_CHANNELS = 32, 3
CIFAR_RECORD = 1 + CIFAR_CHANNELS * CIFAR_SIDE**2  # bytes: a class, then red, green and blue
EPOCHS = 8  # epochs until the order repeats
PLACE_BITS = 20  # bits of a crop's position: 0 is one edge, 2²⁰ − 1 the other
PREFETCHED = 2  # batches that each worker prepares ahead: DataLoader's default, used for all frameworks
# Mean and deviation of a byte. Powers of two make the normalised value exact in every dtype.
MEAN, DEVIATION = 128.0, 64.0


@dataclass(frozen=True)
class ImageSet:
    """uint8 images (height, width, channels) or paths of encoded ones, and an int64 class for each."""

    images: Sequence[NDArray[np.uint8]] | Sequence[str] | NDArray[np.uint8]
    labels: Indices

    @property
    def is_encoded(self) -> bool:
        """True if images are files that are decoded on each access."""
        return isinstance(self.images[0], str)

    def image(self, index: int) -> NDArray[np.uint8]:
        """An image, decoded if necessary."""
        item: Any = self.images[index]
        return decode_image(Path(item)) if isinstance(item, str) else item

    @property
    def least_side(self) -> int:
        """Shorter side of the smallest image, in pixels."""
        return min(min(self._size(index)) for index in range(len(self.labels)))

    def _size(self, index: int) -> tuple[int, int]:
        if not self.is_encoded:
            return self.images[index].shape[:2]  # type: ignore[union-attr]
        with _pillow().open(self.images[index]) as image:  # reads only the header
            return image.size  # type: ignore[no-any-return]

    def spread(self, count: int) -> ImageSet:
        """A subset of `count` images at equal distances, or all if there are fewer."""
        import numpy as np

        indices = np.linspace(0, len(self.labels), min(count, len(self.labels)), endpoint=False).astype(int)
        images: Any = self.images
        selection = [images[at] for at in indices] if self.is_encoded else images[indices]
        return ImageSet(selection, self.labels[indices])


def draw_set(count: int, side: int, classes: int) -> ImageSet:
    """Square images of uniformly random bytes, with random classes."""
    import numpy as np

    source = generator((SEED, crc32(b"image set")))
    shape = count, side, side, CHANNELS[SYNTHETIC]
    return ImageSet(source.integers(0, 256, shape, np.uint8), source.integers(0, classes, count))


def channels_of(name: str) -> int:
    """Number of channels of the images of this set."""
    return CHANNELS[name.partition("-")[0]]


def data_paths() -> list[Path]:
    """Absolute paths of the sets in ACCELBENCH_DATA."""
    return [paths.resolved(entry) for entry in os.environ.get(DATA_PATHS, "").split(os.pathsep) if entry]


def find_set(name: str) -> ImageSet:
    """The user's set with this name; its content is hashed again. Raises Unsupported."""
    kind = name.partition("-")[0]
    for path in data_paths():
        try:
            if set_format(path) == kind and (named_set := read_set(path))[0] == name:
                return named_set[1]
        except UnreadableInput:
            continue  # `accelbench list data` shows the reason
    raise Unsupported(
        f"no file in {DATA_PATHS} or [data] has the content of {name}; run accelbench list data"
    )


def read_set(path: Path) -> tuple[str, ImageSet]:
    """Return the name of a set, and the set. Raises UnreadableInput."""
    kind = set_format(path)
    content, digest = READERS[kind](path)
    return f"{kind}-{digest[:12]}", content


def set_format(path: Path) -> str:
    """Format of a set by its files: `mnist`, `cifar10` or `images`. Raises UnreadableInput."""
    if os.path.isdir(path):
        return "cifar10" if any(path.glob("data_batch_*.bin")) else "images"
    if not os.path.exists(path):
        raise UnreadableInput(f"{path}: there is no such file or folder")
    return "cifar10" if path.suffix == ".bin" else "mnist"


def mnist(path: Path) -> tuple[ImageSet, str]:
    """Read images in the IDX format, compressed or not, and their labels (http://yann.lecun.com/exdb/mnist)."""
    labels_path = path.with_name(path.name.replace("images", "labels").replace("idx3", "idx1"))
    if labels_path == path:
        raise UnreadableInput(f"{path}: not a set of images; MNIST's file is called train-images-idx3-ubyte")
    images, labels = _idx(path, 3)[..., None], _idx(labels_path, 1)
    if len(images) != len(labels):
        raise UnreadableInput(f"{labels_path}: {len(labels)} labels for {len(images)} images")
    return _in_memory(path, images, labels)


def cifar10(path: Path) -> tuple[ImageSet, str]:
    """Read a file of the binary version, or a folder of them (https://www.cs.toronto.edu/~kriz/cifar.html)."""
    import numpy as np

    files = sorted(path.glob("data_batch_*.bin")) if os.path.isdir(path) else [path]
    content = b"".join(read_file(file, MAX_FILE_BYTES) for file in files)
    if not content or len(content) % CIFAR_RECORD:
        raise UnreadableInput(
            f"{path}: not made of records of {CIFAR_RECORD} bytes, unlike CIFAR-10's binary version"
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, CIFAR_RECORD)
    images = records[:, 1:].reshape(-1, CIFAR_CHANNELS, CIFAR_SIDE, CIFAR_SIDE).transpose(0, 2, 3, 1)
    return _in_memory(path, images, records[:, 0])


def image_folder(path: Path) -> tuple[ImageSet, str]:
    """Find PNG and JPEG files, each class in its own subfolder, as torchvision's ImageFolder does."""
    import numpy as np

    files = [
        file for file in sorted(path.rglob("*")) if file.suffix.lower() in SUFFIXES and os.path.isfile(file)
    ]
    if not files:
        raise UnreadableInput(f"{path}: contains no {', '.join(SUFFIXES)}")
    digest = sha256()
    for file in files:
        digest.update(f"{file.relative_to(path).as_posix()}\0".encode())
        digest.update(sha256(read_file(file, MAX_FILE_BYTES)).digest())
    classes = [file.relative_to(path).parts[0] if file.parent != path else "" for file in files]
    numbers = {name: number for number, name in enumerate(sorted(set(classes)))}
    labels = np.array([numbers[name] for name in classes], np.int64)
    return ImageSet([str(file) for file in files], labels), digest.hexdigest()


READERS: dict[str, Callable[[Path], tuple[ImageSet, str]]] = {
    "mnist": mnist,
    "cifar10": cifar10,
    "images": image_folder,
}


def draw_order(count: int) -> Indices:
    """Draw the order of samples: image, crop position from the top and from the left, and flip.

    The shape is (`EPOCHS` · count, 4). Each epoch has every image once, in its own order. The order is drawn
    in advance and is the same in every framework, since the numbers of a framework's own generator could not
    be checked by another.
    """
    import numpy as np

    source = generator((SEED, crc32(b"order of samples")))
    images = np.concatenate([source.permutation(count) for _ in range(EPOCHS)])
    positions = source.integers(0, 2**PLACE_BITS, (2, len(images)))
    return np.stack([images, *positions, source.integers(0, 2, len(images))], axis=1)


def crop_corner(sizes: Sequence[int], side: int, positions: Indices) -> tuple[int, int]:
    """Top row and left column of a square crop; all possible positions are equally likely.

    `sizes` begins with the height and width of the image.
    """

    def first(axis: int) -> int:
        return (sizes[axis] - side + 1) * int(positions[axis]) >> PLACE_BITS

    return first(0), first(1)


def augment(image: NDArray[np.uint8], row: Indices, side: int) -> NDArray[np.float32]:
    """Crop, flip if requested, and normalise an image: shape (side, side, channels)."""
    import numpy as np

    top, left = crop_corner(image.shape, side, row[1:3])
    crop = image[top : top + side, left : left + side]
    crop = crop[:, ::-1] if row[3] else crop
    return (crop.astype(np.float32) - np.float32(MEAN)) / np.float32(DEVIATION)


def decode_image(path: Path) -> NDArray[np.uint8]:
    """Decode an image with Pillow to RGB: (height, width, 3). Raises Unsupported."""
    import numpy as np

    with _pillow().open(path) as image:
        return np.array(image.convert("RGB"))


def require_pillow() -> None:
    """Raise Unsupported if Pillow is not installed."""
    _pillow()


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise Unsupported("decoding images needs Pillow: pip install pillow") from error
    return Image


def _in_memory(path: Path, images: Any, labels: Any) -> tuple[ImageSet, str]:
    """Return a set of writable arrays, as frameworks need them, and the digest of the unpacked arrays."""
    import numpy as np

    if not len(images):
        raise UnreadableInput(f"{path}: contains no image")
    image_set = ImageSet(np.ascontiguousarray(images).copy(), labels.astype(np.int64))
    digest = sha256(repr(images.shape).encode())
    digest.update(image_set.images)  # type: ignore[arg-type]
    digest.update(image_set.labels)  # type: ignore[arg-type]
    return image_set, digest.hexdigest()


def _idx(path: Path, axes: int) -> NDArray[np.uint8]:
    """Read an IDX file of bytes with this number of axes. Raises UnreadableInput."""
    import numpy as np

    content = BytesIO(read_file(path, MAX_FILE_BYTES))
    if path.suffix != ".gz":
        head, body = _read_parts(content, axes, MAX_FILE_BYTES)
    else:
        try:
            with gzip.GzipFile(fileobj=content) as packed:
                head, body = _read_parts(packed, axes, MAX_UNPACKED_BYTES)
        except (OSError, EOFError, BadDeflate) as error:
            raise UnreadableInput(f"{path}: not a gzip file: {error}") from error
    if head[:4] != bytes([0, 0, 8, axes]) or len(body) != math.prod(_sizes(head)):
        raise UnreadableInput(f"{path}: not an IDX file (MNIST's format) with {axes} axes")
    return np.frombuffer(body, np.uint8).reshape(_sizes(head))


def _read_parts(content: BufferedIOBase, axes: int, most: int) -> tuple[bytes, bytes]:
    """Return the header, and its declared number of bytes plus one; no bytes if that exceeds `most`."""
    head = content.read(4 + 4 * axes)
    size = math.prod(_sizes(head))
    return head, read_at_most(content, size + 1) if size <= most else b""


def _sizes(head: bytes) -> list[int]:
    return [int.from_bytes(head[at : at + 4]) for at in range(4, len(head), 4)]
