"""Softmax of every row, as an OpenCL kernel on the memory of torch's tensors.

It runs on a CPU's OpenCL platform, such as PoCL's: pip install 'pyopencl[pocl]'.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from benchbench.errors import Unsupported
from benchbench.model.case import Dtype
from benchbench.model.measurement import Cost
from benchbench.workloads.base import Operation, Program

KERNEL = """
kernel void softmax(global float *result, global const float *x, const int width) {
    const size_t row = get_global_id(0) * width;
    float largest = -INFINITY, sum = 0;
    for (int i = 0; i < width; i++) largest = fmax(largest, x[row + i]);
    for (int i = 0; i < width; i++) sum += result[row + i] = exp(x[row + i] - largest);
    for (int i = 0; i < width; i++) result[row + i] /= sum;
}
"""


@dataclass(frozen=True)
class OpenclSoftmax(Operation):
    rows: int = 4096
    width: int = 1024

    summary = "softmax of every row, by an OpenCL kernel of one's own"

    def tiny(self):
        return replace(self, rows=5, width=37)

    def refuses(self, dtype):
        return "" if dtype is Dtype.FLOAT32 else "the kernel is written for float32"

    def cost(self, dtype):
        """x is read once and the result is written once; a softmax counts no FLOPs."""
        return Cost(flops=0, bytes=2 * self.rows * self.width * dtype.itemsize, items=self.rows, item="row")

    def arrays(self, draw):
        return {"x": draw.normal("x", self.rows, self.width)}

    @property
    def output_shape(self):
        return self.rows, self.width

    @property
    def reduction(self):
        """A row is summed."""
        return self.width

    def reference(self, arrays, index):
        import numpy as np

        rows, columns = index.T
        x = arrays["x"][rows].astype(float)
        powers = np.exp(x - x.max(axis=1, keepdims=True))
        return powers[range(len(rows)), columns] / powers.sum(axis=1)

    def build_torch(self, context, arrays):
        """A work item per row; the buffers are the tensors' own memory, so nothing is copied."""
        import torch

        if context.device.type != "cpu":
            raise Unsupported("this OpenCL kernel works on tensors in the host's memory")
        opencl, queue, kernel = softmax_kernel()
        result = torch.empty(self.rows, self.width)
        written = opencl.Buffer(queue.context, opencl.mem_flags.USE_HOST_PTR, hostbuf=result.numpy())

        def step(x):
            flags = opencl.mem_flags.READ_ONLY | opencl.mem_flags.USE_HOST_PTR
            read = opencl.Buffer(queue.context, flags, hostbuf=x.numpy())
            kernel(queue, (self.rows,), None, written, read, opencl.cltypes.int(self.width))
            queue.finish()
            return result

        return Program(step, (context.put(arrays["x"]),), compiles=False)


def softmax_kernel():
    """pyopencl, a queue of the first CPU that OpenCL can compile for, and the kernel compiled."""
    try:
        import pyopencl
        import pyopencl.cltypes
    except ImportError as error:
        raise Unsupported(f"{error}: pip install 'pyopencl[pocl]'") from error
    try:
        every = [device for platform in pyopencl.get_platforms() for device in platform.get_devices()]
    except pyopencl.LogicError:  # no platform at all
        every = []
    why = "OpenCL knows no CPU here: pip install 'pyopencl[pocl]'"
    for device in every:
        if device.type & pyopencl.device_type.CPU:
            context = pyopencl.Context([device])
            try:
                kernel = pyopencl.Program(context, KERNEL).build().softmax
            except (
                pyopencl.RuntimeError
            ) as error:  # PoCL 3.0, as on PyPI, does not know CPUs later than itself
                why = (
                    f"{device.platform.version} does not compile for {device.name}: "
                    f"{str(error).splitlines()[0]}; install a later platform (Debian: pocl-opencl-icd)"
                )
                continue
            return pyopencl, pyopencl.CommandQueue(context), kernel
    raise Unsupported(why)
