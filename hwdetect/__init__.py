"""Turn a machine into one description that planning can trust.

`detect()` asks the machine; `Machine` is what it says: every fact a value with its source, or absent.
Needs the standard library alone; NVML and vendor tools are used where they are installed.
"""

from hwdetect.detect import detect
from hwdetect.machine import Accelerator, Cpu, Machine, Memory, Note, Severity, State, Vendor

__all__ = ["Accelerator", "Cpu", "Machine", "Memory", "Note", "Severity", "State", "Vendor", "detect"]
