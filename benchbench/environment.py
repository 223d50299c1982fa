import os
from benchbench.model import Machine
def usable_threads(): return 2
def machine(): return Machine(cpu="x",cores=2,threads=2,memory_bytes=2**34,architecture="x86_64",os="l",python="3.11")
def worker_environment(settings, extra, parent):
    return {k:v for k,v in parent.items() if k in ("PATH","HOME","LANG")}|{"OMP_NUM_THREADS":str(settings.threads), "MALLOC_MMAP_THRESHOLD_":"33554432","MALLOC_TRIM_THRESHOLD_":str(2**34)}|extra
