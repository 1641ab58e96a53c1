"""torch_xla's names over lazyrt: a script of torch_xla runs with its import lines changed.

```python
import lazyrt.compat.torch_xla as torch_xla  # import torch_xla
import lazyrt.compat.xla_model as xm  # import torch_xla.core.xla_model as xm
import lazyrt.compat.runtime as xr  # import torch_xla.runtime as xr
import lazyrt.compat.debug.metrics as met  # import torch_xla.debug.metrics as met
import lazyrt.compat.debug.profiler as xp  # import torch_xla.debug.profiler as xp
import lazyrt.compat.stablehlo as stablehlo  # import torch_xla.stablehlo as stablehlo
import lazyrt.compat.distributed.parallel_loader as pl
import lazyrt.compat.distributed.xla_multiprocessing as xmp
import lazyrt.compat.distributed.spmd as xs
import lazyrt.compat.spmd_fully_sharded_data_parallel as fsdp
```

The device is `xm.xla_device()` or `torch_xla.device()`; a literal "xla" in the script becomes
"lazyrt". Names without an equivalent raise NoEquivalentError with the reason.
`docs/coming-from-torch-xla.md` has every name.
"""
