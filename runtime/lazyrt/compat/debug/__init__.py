"""`torch_xla.debug` over lazyrt: metrics and profiler."""
