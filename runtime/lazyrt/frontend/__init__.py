"""From torch ops to IR nodes: the device `lazyrt`, its kernels, buffers and provenance."""
