"""Does a GPU without a server read memory, or start kernels, at two speeds? One CUDA graph of each, in turn and alone.

    python plain_reads.py FOLDER     # needs torch and 16 GB of device memory; writes times.csv and smi.csv
"""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

SAMPLED = "timestamp,clocks.sm,clocks.mem,power.draw.instant,temperature.gpu,temperature.memory"
REPLAYS = 40
folder = Path(sys.argv[1])
weights = [torch.randn(4096, 14336, device="cuda", dtype=torch.bfloat16) for _ in range(128)]  # 15 GB
vector = torch.randn(1, 4096, device="cuda", dtype=torch.bfloat16)
tiny = torch.zeros(4096, device="cuda")


def read() -> None:
    """Multiply a vector by 15 GB of weights, 117 MB at a time."""
    for one in weights:
        torch.mm(vector, one)


def launch() -> None:
    """Start 400 kernels that do next to nothing, each after the one before it."""
    for _ in range(400):
        tiny.add_(1.0)


def captured(work: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """Return *work* as a graph."""
    with torch.cuda.stream(torch.cuda.Stream()):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


graphs = {work.__name__: captured(work) for work in (read, launch)}
log = (folder / "times.csv").open("w")


def stretch(label: str, seconds: float, *names: str) -> None:
    """Replay the graphs of these *names* in turn for so many *seconds*; write what each replay took."""
    end = time.time() + seconds
    while time.time() < end:
        begin, events = time.time(), []
        for name in names * REPLAYS:
            before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            before.record()
            graphs[name].replay()
            after.record()
            events.append((name, before, after))
        torch.cuda.synchronize()
        for name, before, after in events:
            log.write(f"{label},{begin:.3f},{name},{before.elapsed_time(after):.4f}\n")


with (folder / "smi.csv").open("w") as samples:
    command = ["nvidia-smi", f"--query-gpu={SAMPLED}", "--format=csv,nounits", "-lms", "200"]
    sampler = subprocess.Popen(command, stdout=samples)
    for turn in range(5):
        time.sleep(2.0)
        stretch(f"both-after-idle-{turn}", 3.0, "read", "launch")
    for turn in range(3):
        time.sleep(2.0)
        stretch(f"read-after-idle-{turn}", 4.0, "read")
    stretch("read", 15.0, "read")
    stretch("both", 10.0, "read", "launch")
    stretch("launch", 3.0, "launch")
    sampler.terminate()
time.sleep(1.0)
stretch("read-no-sampler", 10.0, "read")
log.close()
