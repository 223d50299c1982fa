"""Environment variables: those passed to workers, those recorded, and those set by accelbench."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from benchbench.errors import UsageError
from benchbench.model.options import Allocator
from benchbench.model.placement import VARIABLE
from benchbench.model.run import Settings

DATA = frozenset({  # locations of models and data, and offline modes
    *("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_DATASETS_CACHE", "TRANSFORMERS_CACHE"),
    *("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE", "TORCH_HOME", "KERAS_HOME"),
    *("TFDS_DATA_DIR", "TFHUB_CACHE_DIR"),
})  # fmt: skip
SYSTEM = DATA | frozenset({  # needed by programs, and locations of data
    *("PATH", "HOME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"),
    *("XDG_CACHE_HOME", "SYSTEMROOT", "SYSTEMDRIVE", "PATHEXT", "TEMP", "TMP", "USERPROFILE", "LOCALAPPDATA"),
    *("LC_ALL", "LC_CTYPE", "LC_NUMERIC", "LC_MESSAGES", "LC_COLLATE", "LC_TIME", "LC_MONETARY"),
    # accelbench
    *("ACCELBENCH_WORKLOADS", "ACCELBENCH_CACHE", "ACCELBENCH_DATA", "ACCELBENCH_DRAWN"),
})  # fmt: skip
TUNING = frozenset({  # affect how frameworks compute; recorded
    # compilers started by frameworks
    *("CC", "CXX", "CUDACXX", "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS"),
    # CUDA and its libraries
    *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_HOME", "CUDA_PATH", "CUDA_MODULE_LOADING"),
    *("CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_CACHE_DISABLE", "CUDA_CACHE_MAXSIZE"),
    *("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUBLAS_WORKSPACE_CONFIG"),
    *("CUDNN_PATH", "CUDNN_HOME", "NVTX_INJECTION64_PATH", "NVIDIA_VISIBLE_DEVICES"),
    "NVIDIA_DRIVER_CAPABILITIES",
    # ROCm
    *("ROCM_PATH", "HIP_PATH", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HSA_OVERRIDE_GFX_VERSION"),
    # TPU
    *("PJRT_DEVICE", "TPU_LIBRARY_PATH", "TPU_VISIBLE_CHIPS", "TPU_CHIPS_PER_PROCESS_BOUNDS"),
    *("TPU_PROCESS_BOUNDS", "TPU_NAME", "TPU_SKIP_MDS_QUERY", "TPU_ACCELERATOR_TYPE", "TPU_WORKER_ID"),
    *("TPU_WORKER_HOSTNAMES", "TPU_CHIPS_PER_HOST_BOUNDS", "TPU_HOST_BOUNDS", "LIBTPU_INIT_ARGS"),
    # JAX and XLA
    *("XLA_FLAGS", "XLA_PYTHON_CLIENT_PREALLOCATE", "XLA_PYTHON_CLIENT_MEM_FRACTION"),
    *("XLA_PYTHON_CLIENT_ALLOCATOR", "JAX_PLATFORMS", "JAX_ENABLE_X64"),
    *("JAX_DEFAULT_MATMUL_PRECISION", "JAX_DISABLE_JIT", "JAX_NUM_CPU_DEVICES", "JAX_DEBUG_NANS"),
    # TensorFlow and Keras
    *("TF_XLA_FLAGS", "TF_CPP_MIN_LOG_LEVEL", "TF_ENABLE_ONEDNN_OPTS"),
    *("TF_NUM_INTEROP_THREADS", "TF_GPU_ALLOCATOR", "TF_FORCE_GPU_ALLOW_GROWTH", "TF_GPU_THREAD_MODE"),
    *("TF_CUDNN_DETERMINISTIC", "TF_DETERMINISTIC_OPS", "TF_CUDNN_USE_AUTOTUNE", "KERAS_BACKEND"),
    # PyTorch and Triton
    *("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING", "TORCH_LOGS"),
    *("TORCH_BLAS_PREFER_CUBLASLT", "TORCH_CUDNN_V8_API_LRU_CACHE_LIMIT", "TORCH_COMPILE_DISABLE"),
    *("TORCH_CUDA_ARCH_LIST", "TORCHINDUCTOR_MAX_AUTOTUNE", "TORCHINDUCTOR_FREEZING"),
    *("TORCHINDUCTOR_COORDINATE_DESCENT_TUNING", "TORCHINDUCTOR_CPP_WRAPPER", "TRITON_INTERPRET"),
    # threads and CPU kernels
    *("OMP_PROC_BIND", "OMP_PLACES", "OMP_SCHEDULE", "OMP_WAIT_POLICY", "OMP_DYNAMIC", "GOMP_CPU_AFFINITY"),
    *("GOMP_SPINCOUNT", "KMP_AFFINITY", "KMP_BLOCKTIME", "KMP_HW_SUBSET", "KMP_SETTINGS"),
    *("MKL_ENABLE_INSTRUCTIONS", "MKL_DEBUG_CPU_TYPE", "MKL_CBWR", "MKL_DYNAMIC", "OPENBLAS_CORETYPE"),
    *("OPENBLAS_L2_SIZE", "ONEDNN_MAX_CPU_ISA", "ONEDNN_VERBOSE", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"),
    *("DNNL_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY"),
    # transfers between devices; those of NCCL and libfabric are recognised by prefix
    *("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"),
})  # fmt: skip
TUNING_PREFIXES = ("NCCL_", "TORCH_NCCL_", "FI_")  # each library has over a hundred variables
SECRET = re.compile("KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH")  # excludes names that match a prefix
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")  # set for every worker
ALLOCATOR_NAMES = ("LD_PRELOAD", "GLIBC_TUNABLES")
ALLOCATOR_PREFIX = "MALLOC_"
STEADY = {
    # Not the mmap threshold: older glibc ignores values above 32 MiB, and larger arrays would page-fault.
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**46),
    # A thread's own arena has only 64 MiB. A common arena also reuses memory freed by other threads.
    "MALLOC_ARENA_MAX": "1",
}
CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "JAX_COMPILATION_CACHE_DIR")
COUNTS = (*THREADS, "NPROC", "TF_NUM_INTRAOP_THREADS")  # with the variables of XLA and TensorFlow
REFUSED = {  # variables that cannot define cases: accelbench sets them, or they do not affect the computation
    **dict.fromkeys(COUNTS, "--threads 1,2 makes a case with each number of threads."),
    **dict.fromkeys(CACHES, "Each run has compile caches of its own."),
    **dict.fromkeys(DATA, "Set it in the shell: it reaches every process, and names no case."),
    **dict.fromkeys(("ACCELBENCH_WORKLOADS", "ACCELBENCH_DATA"), "Set it in the shell."),
    "PYTHONPATH": "accelbench.toml names your code: [code] sources.",
}
REPLACEMENTS = {  # well-known variables that workers do not inherit, and the options that replace them
    **dict.fromkeys(COUNTS, "--threads"),
    **dict.fromkeys(("NUMEXPR_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "--threads"),
    **dict.fromkeys(("NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"), "--dtype"),
    **dict.fromkeys(("ONEDNN_DEFAULT_FPMATH_MODE", "XLA_USE_BF16", "XLA_DOWNCAST_BF16"), "--dtype"),
    **dict.fromkeys(CACHES, "each run has its own"),
}
BY_ENV = "--env"  # replaces variables that a backend sets itself


def worker_environment(
    settings: Settings, extra: Mapping[str, str], parent: Mapping[str, str]
) -> dict[str, str]:
    """Environment of a worker: allowed variables of `parent`, threads, allocator, and `extra`.

    Variables are allowed by name, since a token in the shell must not reach a framework's log, and a prefix
    would match too much (`TF_` is used by TensorFlow and by Terraform's `TF_VAR_password`). Variables that
    override the requested precision, such as NVIDIA_TF32_OVERRIDE or XLA_USE_BF16, are not allowed. With the
    allocator `system` the shell's allocator settings are kept; with `steady` freed memory is reused.
    """
    inherited = {name: value for name, value in parent.items() if name.upper() in SYSTEM or is_tuning(name)}
    threads = dict.fromkeys(THREADS, str(settings.threads))
    shell = {name: value for name, value in parent.items() if _is_allocator(name)}
    allocator = STEADY if settings.allocator is Allocator.STEADY else shell
    return inherited | threads | allocator | dict(extra)


def is_tuning(name: str) -> bool:
    """True if workers inherit the variable and it may affect measurements."""
    upper_name = name.upper()
    return upper_name in TUNING or (upper_name.startswith(TUNING_PREFIXES) and not SECRET.search(upper_name))


def tuning_variables(parent: Mapping[str, str]) -> dict[str, str]:
    """Variables of `parent` that workers inherit and that may affect measurements, sorted by name."""
    return {name: parent[name] for name in sorted(parent) if is_tuning(name)}


def check_variable(name: str) -> None:
    """Raise UsageError for a variable that cannot define cases."""
    if not VARIABLE.fullmatch(name):
        raise UsageError(f"{name!r} is not the name of an environment variable.", "Write --env NAME=value.")
    if name in REFUSED:
        raise UsageError(f"{name} cannot define cases.", REFUSED[name])


def check_passed(names: Iterable[str], shell: Mapping[str, str]) -> tuple[str, ...]:
    """Distinct names of the variables to pass to a function's process. Raises UsageError."""
    distinct_names = tuple(dict.fromkeys(names))
    for name in distinct_names:
        if not VARIABLE.fullmatch(name):
            hint = "Set it in the shell, and give its name alone: MODE=fast accelbench time … --env MODE"
            raise UsageError(f"{name!r} is not the name of an environment variable.", hint)
        if name in REFUSED:
            raise UsageError(f"{name} is not passed on.", REFUSED[name])
        if name not in shell:
            raise UsageError(f"The shell has no variable {name}.", f"export {name}=… sets it.")
    return distinct_names


def is_passed_on(name: str, worker: Mapping[str, str]) -> bool:
    """True if a worker has the variable, or another option replaces it."""
    return name in worker or name in REFUSED or name in REPLACEMENTS or _is_allocator(name)


def unused_variables(parent: Mapping[str, str], workers: Iterable[Mapping[str, str]]) -> str:
    """One line on well-known variables of `parent` that a worker does not inherit unchanged, or empty.

    `workers` are the environments of the workers.
    """
    workers = list(workers)
    well_known = [
        name for name in sorted(parent) if name in REPLACEMENTS or is_tuning(name) or _is_allocator(name)
    ]
    unused = [name for name in well_known if any(worker.get(name) != parent[name] for worker in workers)]
    texts = [f"{name} ({_replacement(name)})" for name in unused]
    return f"variables of the shell that are not used: {', '.join(texts)}" if texts else ""


def _replacement(name: str) -> str:
    return REPLACEMENTS.get(name) or ("--allocator system keeps it" if _is_allocator(name) else BY_ENV)


def _is_allocator(name: str) -> bool:
    return name in ALLOCATOR_NAMES or name.startswith(ALLOCATOR_PREFIX)
