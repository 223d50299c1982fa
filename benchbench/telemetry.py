from benchbench.model import Memory
def reset_host_peak():
    open("/proc/self/clear_refs","w").write("5"); return True
def peak_host(reset):
    for l in open("/proc/self/status"):
        if l.startswith("VmHWM"): return Memory(bytes=int(l.split()[1])*1024)
