"""`torch_xla.distributed` over lazyrt: loaders, and one process for many."""
