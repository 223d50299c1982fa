"""Programs that compute only a part of the output at the timed size are detected after timing."""

import numpy as np

from benchbench.workloads.base import sampled


def test_every_sample_includes_corners_but_mostly_other_elements() -> None:
    source = np.random.default_rng(0)
    index = sampled(source, (7, 5, 3), 256)
    assert {(a, b, c) for a in (0, 6) for b in (0, 4) for c in (0, 2)} <= set(map(tuple, index.tolist()))
    assert len(index) == 256
    assert sampled(source, (9,) * 8, 256).shape == (256, 8)
