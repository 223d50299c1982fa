"""Images that an input pipeline reads, drawn or the user's files, and its samples of them. Read only.

A set of the user's is named by its format and the SHA-256 of its content, `mnist-` and 12 hex digits, never
by its path: the same data has the same name on every machine.
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
SUFFIXES = (".jpeg", ".jpg", ".png")  # of the files in a folder of images
MOST_BYTES = 2**32  # of a file
MOST_UNPACKED = 2**30  # of what is compressed: a few megabytes may become as much
CIFAR_SIDE, CIFAR_CHANNELS = 32, 3
CIFAR_RECORD = 1 + CIFAR_CHANNELS * CIFAR_SIDE**2  # bytes: a class, then red, green and blue
EPOCHS = 8  # after which the order comes again
PLACE_BITS = 20  # of a number that says where a crop lies: 0 at one edge, 2²⁰ − 1 at the other
PREFETCHED = 2  # batches that each worker prepares ahead: DataLoader's default, taken for all
# Of a byte. Powers of two: the normalised value is exact in every dtype, so no framework rounds it otherwise.
MEAN, DEVIATION = 128.0, 64.0


@dataclass(frozen=True)
class ImageSet:
    """uint8 images (height, width, channels), or the paths of encoded ones; the class of each, int64."""

    images: Sequence[NDArray[np.uint8]] | Sequence[str] | NDArray[np.uint8]
    labels: Indices

    @property
    def is_encoded(self) -> bool:
        """Whether an image is a file that is decoded each time it is wanted."""
        return isinstance(self.images[0], str)

    def image(self, index: int) -> NDArray[np.uint8]:
        """An image, decoded."""
        stored: Any = self.images[index]
        return decoded_image(Path(stored)) if isinstance(stored, str) else stored

    @property
    def least_side(self) -> int:
        """The shorter side of the smallest image, in pixels."""
        return min(min(self._size(index)) for index in range(len(self.labels)))

    def _size(self, index: int) -> tuple[int, int]:
        if not self.is_encoded:
            return self.images[index].shape[:2]  # type: ignore[union-attr]
        with _pillow().open(self.images[index]) as image:  # reads no more than its head
            return image.size  # type: ignore[no-any-return]

    def spread(self, count: int) -> ImageSet:
        """`count` of them at even distances, or all where there are fewer."""
        import numpy as np

        chosen = np.linspace(0, len(self.labels), min(count, len(self.labels)), endpoint=False).astype(int)
        images: Any = self.images
        kept = [images[at] for at in chosen] if self.is_encoded else images[chosen]
        return ImageSet(kept, self.labels[chosen])


def drawn_set(count: int, side: int, classes: int) -> ImageSet:
    """Square images in which every byte is equally likely, and classes."""
    import numpy as np

    source = generator((SEED, crc32(b"image set")))
    shape = count, side, side, CHANNELS[SYNTHETIC]
    return ImageSet(source.integers(0, 256, shape, np.uint8), source.integers(0, classes, count))


def channels_of(name: str) -> int:
    """The channels that images of the set of that name have."""
    return CHANNELS[name.partition("-")[0]]


def data_paths() -> list[Path]:
    """Absolute paths of the sets that ACCELBENCH_DATA names."""
    return [paths.resolved(each) for each in os.environ.get(DATA_PATHS, "").split(os.pathsep) if each]


def set_named(name: str) -> ImageSet:
    """The user's set of that name, its content hashed anew. Raises Unsupported."""
    kind = name.partition("-")[0]
    for path in data_paths():
        try:
            if set_format(path) == kind and (found := read_set(path))[0] == name:
                return found[1]
        except UnreadableInput:
            continue  # `accelbench list data` tells why
    raise Unsupported(
        f"no file that {DATA_PATHS} or [data] names has the content of {name}: accelbench list data"
    )


def read_set(path: Path) -> tuple[str, ImageSet]:
    """The name of a set, and the set. Raises UnreadableInput."""
    kind = set_format(path)
    content, digest = READERS[kind](path)
    return f"{kind}-{digest[:12]}", content


def set_format(path: Path) -> str:
    """`mnist`, `cifar10` or `images`, by what is there. Raises UnreadableInput."""
    if os.path.isdir(path):
        return "cifar10" if any(path.glob("data_batch_*.bin")) else "images"
    if not os.path.exists(path):
        raise UnreadableInput(f"{path}: there is no such file or folder")
    return "cifar10" if path.suffix == ".bin" else "mnist"


def mnist(path: Path) -> tuple[ImageSet, str]:
    """Images in the IDX format, compressed or not, beside their labels (http://yann.lecun.com/exdb/mnist)."""
    labels_path = path.with_name(path.name.replace("images", "labels").replace("idx3", "idx1"))
    if labels_path == path:
        raise UnreadableInput(
            f"{path}: no set of images; the file of MNIST's is called train-images-idx3-ubyte"
        )
    images, labels = _idx(path, 3)[..., None], _idx(labels_path, 1)
    if len(images) != len(labels):
        raise UnreadableInput(f"{labels_path}: {len(labels)} labels of {len(images)} images")
    return _in_memory(path, images, labels)


def cifar10(path: Path) -> tuple[ImageSet, str]:
    """A file of the binary version, or the folder of them (https://www.cs.toronto.edu/~kriz/cifar.html)."""
    import numpy as np

    files = sorted(path.glob("data_batch_*.bin")) if os.path.isdir(path) else [path]
    content = b"".join(read_file(file, MOST_BYTES) for file in files)
    if not content or len(content) % CIFAR_RECORD:
        raise UnreadableInput(
            f"{path}: not made of records of {CIFAR_RECORD} bytes, as CIFAR-10's binary version is"
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, CIFAR_RECORD)
    images = records[:, 1:].reshape(-1, CIFAR_CHANNELS, CIFAR_SIDE, CIFAR_SIDE).transpose(0, 2, 3, 1)
    return _in_memory(path, images, records[:, 0])


def image_folder(path: Path) -> tuple[ImageSet, str]:
    """PNG and JPEG files, those of a class in a subfolder of its own, as for torchvision's ImageFolder."""
    import numpy as np

    files = [
        file for file in sorted(path.rglob("*")) if file.suffix.lower() in SUFFIXES and os.path.isfile(file)
    ]
    if not files:
        raise UnreadableInput(f"{path}: no {', '.join(SUFFIXES)} in it")
    digest = sha256()
    for file in files:
        digest.update(f"{file.relative_to(path).as_posix()}\0".encode())
        digest.update(sha256(read_file(file, MOST_BYTES)).digest())
    classes = [file.relative_to(path).parts[0] if file.parent != path else "" for file in files]
    numbers = {name: number for number, name in enumerate(sorted(set(classes)))}
    labels = np.array([numbers[name] for name in classes], np.int64)
    return ImageSet([str(file) for file in files], labels), digest.hexdigest()


READERS: dict[str, Callable[[Path], tuple[ImageSet, str]]] = {
    "mnist": mnist,
    "cifar10": cifar10,
    "images": image_folder,
}


def drawn_order(count: int) -> Indices:
    """For each sample its image, the crop's place from the top and from the left, and whether it is flipped.

    (`EPOCHS` · count, 4). Each epoch has every image once, in an order of its own. Drawn ahead, the same in
    every framework: no framework's own generator gives numbers that another could check.
    """
    import numpy as np

    source = generator((SEED, crc32(b"order of samples")))
    images = np.concatenate([source.permutation(count) for _ in range(EPOCHS)])
    places = source.integers(0, 2**PLACE_BITS, (2, len(images)))
    return np.stack([images, *places, source.integers(0, 2, len(images))], axis=1)


def crop_corner(sizes: Sequence[int], side: int, places: Indices) -> tuple[int, int]:
    """The uppermost row and the leftmost column of a square crop, each possible one equally likely.

    `sizes`: height and width of the image, and whatever else its shape has.
    """

    def first(axis: int) -> int:
        return (sizes[axis] - side + 1) * int(places[axis]) >> PLACE_BITS

    return first(0), first(1)


def augmented(image: NDArray[np.uint8], row: Indices, side: int) -> NDArray[np.float32]:
    """Cropped, flipped from left to right or not, normalised: (side, side, channels)."""
    import numpy as np

    top, left = crop_corner(image.shape, side, row[1:3])
    crop = image[top : top + side, left : left + side]
    crop = crop[:, ::-1] if row[3] else crop
    return (crop.astype(np.float32) - np.float32(MEAN)) / np.float32(DEVIATION)


def decoded_image(path: Path) -> NDArray[np.uint8]:
    """Red, green and blue of an encoded image, by Pillow: (height, width, 3). Raises Unsupported."""
    import numpy as np

    with _pillow().open(path) as image:
        return np.array(image.convert("RGB"))


def require_pillow() -> None:
    """Raise Unsupported where this interpreter has none."""
    _pillow()


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise Unsupported("decoding images needs Pillow: pip install pillow") from error
    return Image


def _in_memory(path: Path, images: Any, labels: Any) -> tuple[ImageSet, str]:
    """A set of arrays that may be written to, as frameworks want them; its hash is of what was unpacked."""
    import numpy as np

    if not len(images):
        raise UnreadableInput(f"{path}: no image in it")
    found = ImageSet(np.ascontiguousarray(images).copy(), labels.astype(np.int64))
    digest = sha256(repr(images.shape).encode())
    digest.update(found.images)  # type: ignore[arg-type]
    digest.update(found.labels)  # type: ignore[arg-type]
    return found, digest.hexdigest()


def _idx(path: Path, axes: int) -> NDArray[np.uint8]:
    """Bytes of so many axes. Raises UnreadableInput."""
    import numpy as np

    content = BytesIO(read_file(path, MOST_BYTES))
    if path.suffix != ".gz":
        head, body = _parts(content, axes, MOST_BYTES)
    else:
        try:
            with gzip.GzipFile(fileobj=content) as packed:
                head, body = _parts(packed, axes, MOST_UNPACKED)
        except (OSError, EOFError, BadDeflate) as error:
            raise UnreadableInput(f"{path}: not a gzip file: {error}") from error
    if head[:4] != bytes([0, 0, 8, axes]) or len(body) != math.prod(_sizes(head)):
        raise UnreadableInput(f"{path}: not in MNIST's format, IDX, of {axes} axes")
    return np.frombuffer(body, np.uint8).reshape(_sizes(head))


def _parts(content: BufferedIOBase, axes: int, most: int) -> tuple[bytes, bytes]:
    """The head, and as many bytes as it says or one more; none where it says more than `most`."""
    head = content.read(4 + 4 * axes)
    size = math.prod(_sizes(head))
    return head, read_at_most(content, size + 1) if size <= most else b""


def _sizes(head: bytes) -> list[int]:
    return [int.from_bytes(head[at : at + 4]) for at in range(4, len(head), 4)]
