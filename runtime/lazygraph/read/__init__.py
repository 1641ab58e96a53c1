"""Readers: HLO, StableHLO, the IR of lazyrt and of torch_xla, and whatever file holds them."""
