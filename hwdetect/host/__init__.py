"""Everything about the machine that is not an accelerator: processors, memory, control groups, disks, container."""
