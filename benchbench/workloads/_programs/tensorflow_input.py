"""A set of images through tf.data."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from benchbench.arrays import Indices
from benchbench.workloads._image_sets import ImageSet
from benchbench.workloads._samples import DEVIATION, MEAN, PLACE_BITS, PREFETCHED
from benchbench.workloads.base import DeviceContext


def sample_function(images: ImageSet, side: int) -> Any:
    """A function from a row of the order to the sample, (side, side, channels), and its class."""
    import tensorflow as tf

    stored, labels = tf.constant(images.images), tf.constant(images.labels)

    def image(index: Any) -> Any:
        if not images.is_encoded:
            return tf.gather(stored, index)
        content = tf.io.read_file(tf.gather(stored, index))
        # Of PNG too. The accurate transform is Pillow's, so that both give the same bytes.
        return tf.io.decode_jpeg(content, channels=3, dct_method="INTEGER_ACCURATE")

    def sample(row: Any) -> Any:
        whole = image(row[0])
        spare = tf.shape(whole, tf.int64)[:2] - side + 1
        corner = tf.bitwise.right_shift(spare * row[1:3], tf.constant(PLACE_BITS, tf.int64))
        crop = tf.slice(whole, tf.concat([corner, [0]], 0), [side, side, -1])
        crop = tf.cond(row[3] == 1, lambda: tf.reverse(crop, [1]), lambda: crop)
        return (tf.cast(crop, tf.float32) - MEAN) / DEVIATION, tf.gather(labels, row[0])

    return sample


def tensorflow_batches(
    images: ImageSet, order: Indices, side: int, batch: int, workers: int, context: DeviceContext
) -> Generator[tuple[Any, ...], None, None]:
    """Images, NHWC, and classes on the device, without end. Workers are threads of a pool of their own."""
    import tensorflow as tf

    with tf.device("CPU:0"):
        samples = tf.data.Dataset.from_tensor_slices(order).repeat()
        samples = samples.map(sample_function(images, side), num_parallel_calls=workers or None)
        batches = samples.batch(batch, drop_remainder=True)
        if workers:
            batches = batches.prefetch(PREFETCHED * workers)
            options = tf.data.Options()
            options.threading.private_threadpool_size = workers
            batches = batches.with_options(options)
    for samples, labels in batches:
        with tf.device(context.device):
            there = tf.cast(tf.identity(samples), context.dtype), tf.identity(labels)
        yield there
