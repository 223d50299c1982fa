"""Input pipelines: equal batches in every framework, and waiting and hidden shares of a step."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from benchbench.analyse.rows import SHARES, hidden_share, median_share, waiting_share
from benchbench.analyse.rows import rows as rows_of
from benchbench.backends.base import Backend, backend_class
from benchbench.errors import UnreadableInput, Unsupported, UsageError
from benchbench.launch.project import user_data
from benchbench.machine.kernel import cpu_seconds
from benchbench.model.case import Dtype
from benchbench.model.measurement import Measurement
from benchbench.store.codec import decode, encode
from benchbench.worker.after_timing import check_fed_step
from benchbench.worker.program import OpenCase, WrongResult, build
from benchbench.workloads._image_sets import (
    DATA_PATHS,
    EPOCHS,
    PLACE_BITS,
    augment,
    crop_corner,
    draw_order,
    find_set,
    read_set,
)
from benchbench.workloads._programs.jax import require_grain
from benchbench.workloads.base import CONSUMER, SOURCE, Draw
from benchbench.workloads.networks.plain_cnns import ConvnetTrain
from benchbench.workloads.transfers.input_pipeline import InputPipeline
from tests.brief import BRIEFLY
from tests.factories import a_case, a_measurement, a_record, a_run
from tests.program import accelbench, processes_mentioning, records, rows, wait_for

SHARED_MEMORY = Path("/dev/shm")
FRAMEWORKS = ["torch", "tensorflow", "jax"]
warned = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)


# Samples.


@given(st.integers(1, 300))
def test_an_epoch_has_every_image_once_in_a_new_order(count: int) -> None:
    epochs = draw_order(count)[:, 0].reshape(EPOCHS, count)
    for epoch in epochs:
        assert sorted(epoch) == list(range(count))
    if count > 10:
        assert len({tuple(epoch) for epoch in epochs}) == EPOCHS


@given(st.integers(1, 300), st.integers(0, 40), st.integers(0, 40))
def test_a_crop_stays_inside_and_reaches_every_edge(side: int, height: int, width: int) -> None:
    last = 2**PLACE_BITS - 1
    assert crop_corner((side + height, side + width), side, np.array([0, last])) == (0, width)
    assert crop_corner((side + height, side + width), side, np.array([last, 0])) == (height, 0)


def test_a_sample_is_the_flipped_crop_and_exact_in_every_dtype() -> None:
    image = np.random.default_rng(0).integers(0, 256, (5, 6, 3), np.uint8)
    positions = np.array([0, 2**PLACE_BITS // 2, 2**PLACE_BITS - 1, 1])
    sample = augment(image, positions, 4)
    np.testing.assert_array_equal(sample, (image[1:5, 2:6][:, ::-1].astype(float) - 128) / 64)
    every = augment(np.arange(256, dtype=np.uint8).reshape(16, 16, 1), np.zeros(4, int), 16)
    assert not (every.view(np.uint32) & 0xFFFF).any()  # bfloat16 represents all values


def test_each_step_uses_the_next_batch_across_epochs() -> None:
    work = InputPipeline(batch=3, side=8, samples=4)
    order, images = work.order(), work.image_set()
    labels = np.concatenate([work.batch_at(step)["labels"] for step in range(3)])
    np.testing.assert_array_equal(labels, images.labels[order[:9, 0]])
    batches = len(order) // 3  # and two samples, with which the next batch begins
    np.testing.assert_array_equal(
        work.batch_at(batches)["labels"], images.labels[order[[*range(3 * batches, len(order)), 0], 0]]
    )


def test_a_reference_uses_another_batch_in_each_step() -> None:
    work = InputPipeline().tiny()
    arrays = work.arrays(Draw(Dtype.FLOAT64))
    losses = [loss for loss, _ in work.reference(arrays, 2)]
    next_arrays = {**arrays, **work.batch_at(1)}
    assert next(iter(work.steps(arrays))).loss == losses[0]
    assert next(iter(work.steps(next_arrays))).loss != losses[0]
    assert len(set(losses)) == 2


@pytest.mark.parametrize(
    "source", ["", "mnist", "mnist-12", "mnist-0123456789abX", "/data/mnist", "imagenet-0123456789ab"]
)
def test_a_source_is_the_name_of_a_set(source: str) -> None:
    with pytest.raises(UsageError, match="no set of images"):
        InputPipeline(source=source)


@pytest.mark.parametrize(("side", "layers"), [(1, 1), (8, 1), (9, 1), (32, 2), (224, 5)])
def test_the_network_halves_an_image_until_it_is_small(side: int, layers: int) -> None:
    work = InputPipeline(side=side)
    assert sum(layer.name.startswith("conv") for layer in work.layers() if hasattr(layer, "name")) == layers


def test_at_a_side_of_32_the_network_is_convnet() -> None:
    assert InputPipeline().weights() == ConvnetTrain().weights()


# User data sets


def idx(array: NDArray[np.uint8]) -> bytes:
    head = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4) for size in array.shape)
    return head + array.tobytes()


def random_bytes(*shape: int, below: int = 256) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, below, shape, np.uint8)


def mnist_files(images: int, labels: int, side: int = 3) -> dict[str, bytes]:
    return {
        "train-labels-idx1-ubyte": idx(random_bytes(labels, below=10)),
        "train-images-idx3-ubyte": idx(random_bytes(images, side, side)),
    }


def an_mnist(folder: Path, *, packed: bool = False) -> Path:
    folder.mkdir(exist_ok=True)
    for name, content in mnist_files(30, 30, side=28).items():
        path = folder / (f"{name}.gz" if packed else name)
        path.write_bytes(gzip.compress(content) if packed else content)
    return path


def a_cifar10(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    records = random_bytes(20, 3073)
    records[:, 0] = np.arange(20) % 10
    for part in range(2):
        (folder / f"data_batch_{part + 1}.bin").write_bytes(records[10 * part : 10 * part + 10].tobytes())
    return folder


def a_folder(folder: Path) -> Path:
    image = pytest.importorskip("PIL.Image")
    for number in range(12):
        of_class = folder / ("cats", "dogs")[number % 2]
        of_class.mkdir(parents=True, exist_ok=True)
        # Smooth images with odd sides, so that JPEG halves the chroma with a remainder.
        rows, columns = np.mgrid[: 21 + number, : 35 - number]
        pixels = np.stack([5 * rows + number, 7 * columns, 3 * rows + 2 * columns], -1) % 256
        suffix = ("png", "jpg", "jpeg")[number % 3]
        image.fromarray(pixels.astype(np.uint8)).save(of_class / f"{number}.{suffix}")
    return folder


SETS: dict[str, tuple[Callable[[Path], Path], int]] = {
    "mnist": (an_mnist, 28),
    "cifar10": (a_cifar10, 32),
    "images": (a_folder, 21),
}


@pytest.fixture(params=SETS)
def work(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InputPipeline:
    """A pipeline over a user's data set."""
    make, side = SETS[request.param]
    path = make(tmp_path / request.param)
    monkeypatch.setenv(DATA_PATHS, os.pathsep.join([str(tmp_path / "absent"), str(path)]))
    return InputPipeline(batch=5, side=side, samples=7, workers=0, source=read_set(path)[0])


def test_a_user_data_set_is_identified_by_its_content(work: InputPipeline) -> None:
    kind, _, digest = work.source.partition("-")
    assert (kind in SETS, len(digest)) == (True, 12)
    batch = work.batch_at(0)
    assert batch["images"].shape == (5, 1 if kind == "mnist" else 3, work.side, work.side)
    assert len(np.unique(batch["images"])) > 10
    assert batch["labels"].max() < 10


def test_samples_come_from_the_whole_set(work: InputPipeline) -> None:
    assert len(work.image_set().labels) == 7
    image_set = find_set(work.source)
    first, last = (work.image_set().image(at) for at in (0, 6))
    np.testing.assert_array_equal(first, image_set.image(0))
    assert any(
        np.array_equal(last, image_set.image(at))
        for at in range(len(image_set.labels) // 2, len(image_set.labels))
    )


@pytest.mark.parametrize("kind", SETS)
def test_a_set_is_named_after_its_content(kind: str, tmp_path: Path) -> None:
    make, _ = SETS[kind]
    first, second = make(tmp_path / "one"), make(tmp_path / "other")
    assert read_set(first)[0] == read_set(second)[0]
    file = second if second.is_file() else sorted(path for path in second.rglob("*") if path.is_file())[0]
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert read_set(second)[0] != read_set(first)[0]


def test_packing_mnist_does_not_change_its_name(tmp_path: Path) -> None:
    assert read_set(an_mnist(tmp_path / "a"))[0] == read_set(an_mnist(tmp_path / "b", packed=True))[0]


def test_each_subfolder_is_a_class_by_its_name(tmp_path: Path) -> None:
    folder = a_folder(tmp_path / "photos")
    name, images = read_set(folder)
    assert list(images.labels) == [0] * 6 + [1] * 6
    (folder / "cats").rename(folder / "lions")  # the classes are in another order
    assert read_set(folder)[0] != name


@pytest.mark.parametrize(
    ("files", "path", "why"),
    [
        ({"train-images-idx3-ubyte": b"no"}, "train-images-idx3-ubyte", "not an IDX file"),
        ({"train-images-idx3-ubyte": idx(random_bytes(2, 3, 3))}, "train-images-idx3-ubyte", "No such file"),
        (mnist_files(images=2, labels=3), "train-images-idx3-ubyte", "3 labels for 2 images"),
        ({"train-images-idx3-ubyte.gz": b"no"}, "train-images-idx3-ubyte.gz", "not a gzip file"),
        (mnist_files(images=0, labels=0), "train-images-idx3-ubyte", "contains no image"),
        ({"data_batch_1.bin": bytes(3072)}, "", "records of 3073 bytes"),
        ({"one.bin": b""}, "one.bin", "records of 3073 bytes"),
        ({"pictures.zip": b""}, "pictures.zip", "not a set of images"),
        ({"read.me": b""}, "", "contains no .jpeg, .jpg, .png"),
        ({}, "absent", "no such file or folder"),
    ],
)
def test_the_error_of_an_unreadable_set_has_the_reason(
    tmp_path: Path, files: dict[str, bytes], path: str, why: str
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UnreadableInput, match=why):
        read_set(tmp_path / path)


@pytest.mark.parametrize("images", [1, 2**32 - 1], ids=["more than it says", "as much as it says"])
def test_x8_unpacking_stops_at_the_declared_and_the_largest_size(tmp_path: Path, images: int) -> None:
    path, zeros = an_mnist(tmp_path, packed=True), gzip.compress(bytes(2**20))
    head = bytes([0, 0, 8, 3]) + b"".join(size.to_bytes(4) for size in (images, 2, 2))
    path.write_bytes(gzip.compress(head) + 64 * zeros)
    assert path.stat().st_size < 2**17
    tracemalloc.start()
    with pytest.raises(UnreadableInput, match="not an IDX file"):
        read_set(path)
    assert tracemalloc.get_traced_memory()[1] < 2**22
    tracemalloc.stop()


def test_a_damaged_packed_file_is_an_error(tmp_path: Path) -> None:
    path = an_mnist(tmp_path, packed=True)
    content = path.read_bytes()
    path.write_bytes(content[:10] + b"\xff" * (len(content) - 10))
    with pytest.raises(UnreadableInput, match="not a gzip file"):
        read_set(path)


def test_a_missing_or_too_small_set_is_unsupported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = a_cifar10(tmp_path / "cifar")
    monkeypatch.setenv(DATA_PATHS, str(path))
    name = read_set(path)[0]
    with pytest.raises(Unsupported, match="-p side=32"):
        InputPipeline(source=name, side=33).image_set()
    with pytest.raises(Unsupported, match="more classes: -p classes="):
        InputPipeline(source=name, classes=1).image_set()
    with pytest.raises(Unsupported, match="accelbench list data") as error:
        InputPipeline(source="mnist-0123456789ab").image_set()
    assert str(tmp_path) not in str(error.value)


def test_data_paths_come_from_a_variable_or_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "accelbench.toml").write_text('[data]\npaths = ["mnist", "photos"]\n')
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    monkeypatch.delenv(DATA_PATHS, raising=False)
    assert user_data() == (str(tmp_path / "mnist"), str(tmp_path / "photos"))
    monkeypatch.setenv(DATA_PATHS, "here")
    assert user_data() == (str(tmp_path / "below/here"),)


def test_data_sets_are_listed_by_the_names_used_in_cases(tmp_path: Path) -> None:
    path = a_cifar10(tmp_path / "cifar")
    paths = os.pathsep.join([str(path), "absent"])
    listed = json.loads(
        accelbench("list", "data", "--format", "json", cwd=tmp_path, ACCELBENCH_DATA=paths).stdout
    )
    assert [row["source"] for row in listed] == ["synthetic", read_set(path)[0], "–"]
    assert listed[1] == {"source": read_set(path)[0], "images": "20", "classes": "10", "note": str(path)}
    assert "no such file" in listed[2]["note"]


# A step with an input pipeline


@pytest.mark.real
@pytest.mark.parametrize("times", [pytest.param(0.5, marks=pytest.mark.nightly), 3.0])
def test_waiting_is_the_extra_time_compared_with_data_in_memory(tmp_path: Path, times: float) -> None:
    accelbench(
        *("run", "-b", "fake", "-d", "cpu", "--quick", "--rounds", "1", "-w", "feeding"),
        *("-p", f"times={times}"),
        cwd=tmp_path,
    )
    (row,) = rows(tmp_path)
    assert row["status"] == "ok"
    assert row["latency_s"] == pytest.approx((times + 1) * 1e-3)
    assert row["waiting_share"] == pytest.approx(times / (times + 1))
    assert row["hidden_share"] == pytest.approx(0)


# Processes of a case


SPINNING = r"""
import subprocess, sys
below = "import time\nend = time.process_time() + 1\nwhile time.process_time() < end: pass"
subprocess.run([sys.executable, "-c", below])
"""


@pytest.mark.real
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_the_cpu_time_of_child_processes_belongs_to_the_case() -> None:
    own_s, before = time.process_time(), cpu_seconds()

    def below_s() -> float:
        return cpu_seconds() - before - (time.process_time() - own_s)

    with subprocess.Popen([sys.executable, "-c", SPINNING]) as child:
        wait_for(lambda: below_s() > 0.5)
        assert child.poll() is None
    assert below_s() > 1  # even after it has ended


# Pipelines of the frameworks


def backend_of(framework: str) -> Backend:
    pytest.importorskip(framework)
    if framework == "jax":
        pytest.importorskip("grain")
    loaded = backend_class(framework)()
    loaded.load()
    return loaded


def batches(framework: str, work: InputPipeline, count: int) -> Iterator[tuple[Any, Any]]:
    """The first batches as NumPy arrays: images in NCHW, and classes."""
    backend = backend_of(framework)
    session = backend.open("cpu", Dtype.FLOAT32, backend.modes[0], 2)
    with build(backend, session, work, Dtype.FLOAT32) as runner:
        for images, labels in islice(runner.inputs, count):
            batch = session.fetch(images)
            yield batch if framework == "torch" else batch.transpose(0, 3, 1, 2), session.fetch(labels)


def assert_batches_match(framework: str, work: InputPipeline, count: int) -> None:
    for step, (images, labels) in enumerate(batches(framework, work, count)):
        expected = work.batch_at(step)
        np.testing.assert_array_equal(images, expected["images"])
        np.testing.assert_array_equal(labels, expected["labels"])
    assert step == count - 1


@pytest.mark.real
@warned
@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.nightly), 2])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_each_batch_equals_the_reference_bit_by_bit(framework: str, workers: int) -> None:
    """Compare 13 batches: more than one epoch, which has 56 samples."""
    assert_batches_match(framework, InputPipeline(batch=5, side=9, samples=7, workers=workers), 13)


@pytest.mark.real
@warned
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_batches_of_user_images_equal_the_reference_bit_by_bit(framework: str, work: InputPipeline) -> None:
    assert_batches_match(framework, work, 4)


@pytest.mark.real
@warned
def test_a_timed_step_that_ignores_its_batch_is_wrong() -> None:
    backend, work = backend_of("torch"), InputPipeline(workers=0).tiny()
    case = a_case(workload="input_pipeline", params=work.params, phase=work.phase)
    session = backend.open("cpu", Dtype.FLOAT32, "eager", 2)
    with build(backend, session, work, Dtype.FLOAT32) as runner:
        opened = OpenCase(backend, {}, case, work, session, runner)
        check_fed_step(opened)
        right = runner.compiled
        runner.compiled = lambda *_: right(*runner.program.inputs)
        with pytest.raises(WrongResult, match="does not depend on the inputs"):
            check_fed_step(opened)


@pytest.mark.real
@pytest.mark.skipif(not SHARED_MEMORY.is_dir(), reason="Linux's shared memory")
@pytest.mark.parametrize("framework", ["torch", pytest.param("jax", marks=pytest.mark.nightly)])
def test_data_workers_end_with_their_case(framework: str, tmp_path: Path) -> None:
    backend_of(framework)
    before = set(SHARED_MEMORY.iterdir())
    accelbench(
        *("run", "-b", framework, "-d", "cpu", "--quick", "--rounds", "1", "-w", "input_pipeline"),
        *("-p", "batch=32", "-p", "samples=64"),
        cwd=tmp_path,
        ACCELBENCH_WORKLOADS="",
        TMPDIR=str(tmp_path),
        **BRIEFLY,
    )
    (row,) = rows(tmp_path)
    assert row["status"] == "ok"
    assert 0 <= row["waiting_share"] <= 1
    assert not processes_mentioning(str(tmp_path))
    remaining = set(SHARED_MEMORY.iterdir()) - before
    assert not [path for path in remaining if path.exists() and not is_mapped(path)]


def is_mapped(path: Path) -> bool:
    """Whether a process that still runs maps this shared memory, as another test does."""
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):
            if str(path) in maps.read_text():
                return True
    return False


@pytest.mark.real
def test_a_run_uses_user_data_without_storing_paths(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    name = read_set(an_mnist(tmp_path / "mnist"))[0]
    (tmp_path / "accelbench.toml").write_text('[data]\npaths = ["mnist/train-images-idx3-ubyte"]\n')
    accelbench(
        *("run", "-b", "tensorflow", "-d", "cpu", "--quick", "--rounds", "1", "-w", "input_pipeline"),
        *("-p", f"source={name},mnist-0123456789ab", "-p", "side=28", "-p", "batch=8"),
        cwd=tmp_path,
        ACCELBENCH_WORKLOADS="",
        **BRIEFLY,
    )
    status = {row["params"]["source"]: row["status"] for row in rows(tmp_path)}
    assert status == {name: "ok", "mnist-0123456789ab": "unsupported"}
    assert not [line for line in records(tmp_path) if str(tmp_path) in line]


def test_the_error_of_jax_without_grain_has_the_command() -> None:
    with pytest.raises(Unsupported, match="pip install grain"):
        require_grain(find=lambda name: None)


SECONDS = st.floats(1e-3, 1e3)


@given(SECONDS, SECONDS)
def test_all_is_hidden_if_a_step_takes_as_long_as_its_longer_part(source: float, consumer: float) -> None:
    longer = max(source, consumer)
    assert hidden_share(longer, source, consumer) == pytest.approx(1)
    assert hidden_share(source + consumer, source, consumer) == pytest.approx(0, abs=1e-6)
    assert waiting_share(longer, source, consumer) == pytest.approx(1 - consumer / longer)


@given(SECONDS, SECONDS, SECONDS)
def test_a_share_is_between_0_and_1_despite_noise(step: float, source: float, consumer: float) -> None:
    assert all(0 <= share(step, source, consumer) <= 1 for share in SHARES.values())


def test_shares_are_medians_of_processes() -> None:
    def process(source: float) -> Measurement:
        parts = {SOURCE: (source, source, 99.0), CONSUMER: (1.0, 1.0, 1.0)}
        return a_measurement(iterations=2, block_s=(2.5, 2.5, 2.5), parts_s=parts)

    shares = [median_share([process(s) for s in (0.4, 0.5, 0.25)], share).value for share in SHARES.values()]
    assert shares == pytest.approx([0.15 / 0.4, 0.2])
    assert median_share([a_measurement()], hidden_share).value is None


def test_parts_are_stored_and_a_step_without_them_reads_as_before() -> None:
    parts = {SOURCE: (0.1, 0.2), CONSUMER: (0.3, 0.4)}
    record = a_record(a_measurement(parts_s=parts))
    assert decode(encode(record)) == record
    (row,) = rows_of(a_run([a_record()]))
    assert not [note for note in row.notes if "hidden" in note.text]


@pytest.mark.real
@pytest.mark.parametrize(
    ("percent", "note"),
    [
        (0, "0 % of the shorter of its two parts is hidden behind the longer; 20.0 % of a step is waiting"),
        (100, "100 % of the shorter of its two parts is hidden behind the longer; 0 % of a step is waiting"),
    ],
)
def test_hidden_time_is_measured_and_reported(tmp_path: Path, percent: int, note: str) -> None:
    accelbench(
        *("run", "-b", "fake", "-d", "cpu", "--quick", "--rounds", "1", "-w", "overlapping"),
        *("-p", f"hidden={percent}"),
        cwd=tmp_path,
    )
    (row,) = rows(tmp_path)
    assert row["status"] == "ok"
    assert row["hidden_share"] == pytest.approx(percent / 100)
    assert row["waiting_share"] == pytest.approx(1 - 1 / (1.25 - 0.25 * percent / 100))
    assert note in row["notes"]
