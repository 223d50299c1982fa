"""Variables of the shell in workers: those that change the computation, or a line that names them."""

import pytest

from benchbench.errors import UsageError
from benchbench.machine.variables import (
    DATA,
    THREADS,
    check_variable,
    tuning_variables,
    unused_variables,
    worker_environment,
)
from benchbench.model.device import Target
from benchbench.model.options import Allocator, MeasureOptions
from benchbench.model.run import Settings
from benchbench.plan.rerun import parse_variant
from benchbench.running.measure import Side, warn_of_unused_variables
from benchbench.running.request import request
from tests.factories import NotingObserver

SETTINGS = Settings(threads=3)


@pytest.mark.parametrize(
    "name",
    [
        *("ATEN_CPU_CAPABILITY", "NCCL_P2P_DISABLE", "NCCL_DEBUG", "TORCH_NCCL_BLOCKING_WAIT"),
        *("GLOO_SOCKET_IFNAME", "FI_PROVIDER", "FI_EFA_USE_DEVICE_RDMA"),
    ],
)
def test_variables_of_kernels_and_communication_reach_workers_and_are_recorded(name: str) -> None:
    assert worker_environment(SETTINGS, {}, {name: "x"})[name] == "x"
    assert tuning_variables({name: "x"}) == {name: "x"}


@pytest.mark.parametrize("name", ["NCCL_AUTH_TOKEN", "FI_PASSWORD", "NCCL_API_KEY", "FIGMA", "NCCLX"])
def test_a_variable_prefix_exposes_no_secret(name: str) -> None:
    assert name not in worker_environment(SETTINGS, {}, {name: "canary"})
    assert tuning_variables({name: "canary"}) == {}


@pytest.mark.parametrize("name", sorted(DATA))
def test_variables_of_data_folders_reach_workers_without_defining_cases(name: str) -> None:
    assert worker_environment(SETTINGS, {}, {name: "/data"})[name] == "/data"
    assert tuning_variables({name: "/data"}) == {}
    with pytest.raises(UsageError, match=f"{name} cannot define cases") as caught:
        request(MeasureOptions(workloads=("gemm",), environment={name: "/data"}))
    assert "Set it in the shell" in caught.value.hint


@pytest.mark.parametrize("name", [*THREADS, "NPROC", "TF_NUM_INTRAOP_THREADS"])
def test_variables_set_by_accelbench_are_refused_with_the_option(name: str) -> None:
    for refused in (
        lambda: check_variable(name),
        lambda: request(MeasureOptions(workloads=("gemm",), environment={name: ["1", "2"]})),
        lambda: parse_variant(f"env:{name}=1"),
    ):
        with pytest.raises(UsageError, match=f"{name} cannot define cases") as caught:
            refused()
        assert "--threads 1,2" in caught.value.hint


def test_a_line_names_the_variables_that_workers_do_not_get_unchanged() -> None:
    shell = {
        "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "3", "NVIDIA_TF32_OVERRIDE": "1", "LD_PRELOAD": "/x.so",
        "XLA_FLAGS": "--x", "HOME": "/root", "GITHUB_TOKEN": "canary", "TF_VAR_password": "canary",
    }  # fmt: skip
    line = unused_variables(shell, [worker_environment(SETTINGS, {}, shell)])
    assert line == (
        "variables of the shell that are not used: LD_PRELOAD (--allocator system keeps it), "
        "NVIDIA_TF32_OVERRIDE (--dtype), OMP_NUM_THREADS (--threads)"
    )
    overridden = worker_environment(SETTINGS, {"XLA_FLAGS": "--y"}, shell)
    assert "XLA_FLAGS (--env)" in unused_variables(shell, [overridden])
    system = Settings(threads=1, allocator=Allocator.SYSTEM)
    used = {"LD_PRELOAD": "/x.so", "OMP_NUM_THREADS": "1"}
    assert unused_variables(used, [worker_environment(system, {}, used)]) == ""


def test_variables_that_a_backend_sets_itself_are_reported_as_unused() -> None:
    observer = NotingObserver()

    def side(backend: str) -> Side:
        return Side(targets=[Target(name=backend, backend=backend, python="p")], settings=SETTINGS)

    shell = {"NPROC": "9", "XLA_PYTHON_CLIENT_PREALLOCATE": "true", "ATEN_CPU_CAPABILITY": "default"}
    warn_of_unused_variables(observer, [side("fake")], shell)
    assert observer.notes == []
    warn_of_unused_variables(observer, [side("jax")], shell)
    assert observer.notes == [
        "variables of the shell that are not used: NPROC (--threads), XLA_PYTHON_CLIENT_PREALLOCATE (--env)"
    ]
