"""The only code that touches the kernel: /proc, /sys, control groups, loops; knows nothing of traces or pools."""
