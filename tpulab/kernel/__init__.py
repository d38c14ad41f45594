"""What a kernel's author wrote (grid, blocks, scratch, work, traffic), and running it.

``trace`` describes every ``pallas_call`` of a function, ``run`` runs the function on the CPU with
the fast or the faithful interpreter, ``illegalities`` holds it against a chip's rules.
"""

from tpulab.kernel.arguments import parse_argument
from tpulab.kernel.legality import Illegality, illegalities
from tpulab.kernel.load import LoadError, load_function
from tpulab.kernel.mesh import TooFewDevices, on_devices, start_host_devices
from tpulab.kernel.model import Kernel, Matmul, Operand, PallasCall, Scratch, ShapeDtype
from tpulab.kernel.observing import Deadlock
from tpulab.kernel.running import Race, RunError, RunReport, UninitialisedOutput, run
from tpulab.kernel.tracing import NoPallasCall, TraceError, trace
from tpulab.kernel.transfers import Transfer

__all__ = [
    "Deadlock",
    "Illegality",
    "Kernel",
    "LoadError",
    "Matmul",
    "NoPallasCall",
    "Operand",
    "PallasCall",
    "Race",
    "RunError",
    "RunReport",
    "Scratch",
    "ShapeDtype",
    "TooFewDevices",
    "TraceError",
    "Transfer",
    "UninitialisedOutput",
    "illegalities",
    "load_function",
    "on_devices",
    "parse_argument",
    "run",
    "start_host_devices",
    "trace",
]
