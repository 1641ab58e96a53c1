"""What a session rests on, each with what to do about it: `%lazy doctor`, `python -m lazyviz doctor`.

Nothing is compiled, run or written for it.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.metadata
import os
import platform
import shutil
import sys
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from lazyviz import session
from lazyviz.command_line import __version__
from lazyviz.doc import Doc, Facts, Line, Part, Points
from lazyviz.draw import layout
from lazyviz.render import text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import ModuleType

_PACKAGES = ("torch", "jax", "jaxlib", "numpy", "ipython", "ipywidgets", "anywidget")
# Those are told where they are installed.
_OPTIONAL = ("jupyterlab", "notebook", "graphviz", "pygraphviz")
_WIDTH = 15
# Settings that make each step slower, or each process start slower, while they hold: when that
# is so, and why.
_COSTS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "eager": (bool, "each op is compiled and run by itself"),
    "op_by_op_reads": (bool, "a read runs its ops one by one"),
    "op_by_op_barriers": (bool, "a step runs its ops one by one"),
    "compile_tier": (
        lambda tier: tier == "fast",
        "steps compile four times as fast and run three times as long",
    ),
    "dynamo_bridge": (
        lambda count: count != "one",
        "a compiled training step is several executions",
    ),
    "keep_values": (
        lambda kept: kept not in {"off", 0},
        "inputs that a step overwrites are copied first",
    ),
    "stop_at_nan": (bool, "one step in 200 copies what it overwrites"),
    "check_hits": (bool, "each cache hit compares two graphs"),
    "deferred_checks": (lambda on: not on, "a check of values breaks the graph"),
    "cache_dir": (
        lambda folder: folder is None,
        "each new process compiles all graphs again",
    ),
}
# Flags of XLA that make programs slower, by how the flag begins.
_FLAGS = {
    "--xla_dump_": "XLA writes its programs to files",
    "--xla_cpu_multi_thread_eigen=false": "large ops run on one thread",
    "--xla_backend_optimization_level=0": "programs are not optimised",
    "--xla_force_host_platform_device_count": "the processors are shared among these devices",
}


class Check(NamedTuple):
    """One thing that was looked at; a fault is something that does not work."""

    name: str
    found: str
    advice: str = ""
    kind: Literal["fault", "hint"] = "hint"


def checks(runtime: ModuleType | None, shell: Any = None) -> list[Check]:
    """Return what a session rests on: the runtime, if it is imported, and the shell, if any."""
    found = [*_versions(), *_processors(), _drawing(), *_front_end(shell)]
    if runtime is None:
        return [*found, Check("device", "lazyrt is not imported: no lazy device yet")]
    return [
        *found,
        *_device(runtime),
        *_cache(runtime),
        _memory(runtime),
        *_settings(runtime),
        *_others(),
    ]


def doc(found: Sequence[Check]) -> Doc:
    """Return checks, with what to do first."""
    asked = [check for check in found if check.advice]
    total = text.plural(len(found), "check")
    faults = sum(check.kind == "fault" for check in asked)
    counts = [
        text.plural(count, noun)
        for count, noun in ((faults, "fault"), (len(asked) - faults, "hint"))
        if count
    ]
    parts: list[Part] = [Line(f"{total}, nothing to do.")]
    if asked:
        advice = [f"{check.name}: {check.advice}" for check in asked]
        parts = [Line(f"{total}: {', '.join(counts)}."), Points(advice)]
    rows = [(check.name, check.found) for check in found]
    return Doc([*parts, Facts(("check", "found"), rows, _WIDTH)], gap="\n\n")


# ------------------------------------------------------------------------------- checks


def _versions() -> Iterator[Check]:
    named = [("Python", platform.python_version()), ("lazyviz", __version__)]
    missing = []
    for name in (*_PACKAGES, *_OPTIONAL):
        version = _version_of(name)
        if version is not None:
            named.append((name, version))
        elif name in _PACKAGES:
            missing.append(name)
    shown = ", ".join(f"{name} {version}" for name, version in named)
    unfit = [*_unfit(), *(f"{name} is not installed" for name in missing)]
    advice = ""
    if unfit:
        advice = f"{'; '.join(unfit)}. Run: pip install --upgrade lazyviz"
    yield Check("versions", shown, advice, "fault")


def _version_of(name: str) -> str | None:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(name)
    return None


def _unfit() -> Iterator[str]:
    """Yield the packages whose version lazyviz does not take, where its metadata is at hand."""
    with contextlib.suppress(ImportError, importlib.metadata.PackageNotFoundError):
        from packaging.requirements import Requirement

        for word in importlib.metadata.requires("lazyviz") or ():
            wanted = Requirement(word)
            version = _version_of(wanted.name)
            applies = wanted.marker is None or wanted.marker.evaluate({"extra": ""})
            if (
                applies
                and version is not None
                and not wanted.specifier.contains(version, prereleases=True)
            ):
                yield f"{wanted.name} is {version}, lazyviz takes {wanted.specifier}"


def _processors() -> Iterator[Check]:
    allowed = (
        len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count() or 1
    )
    shown = f"{allowed} of {text.plural(os.cpu_count() or 1, 'processor')}"
    quota = _quota()
    advice = ""
    if quota is not None:
        shown += f", of which the container may use {quota:.3g}"
        if quota < allowed:
            advice = (
                f"XLA starts a thread for each of {allowed} processors and may use {quota:.3g}, "
                "so they wait for each other. Start the program with "
                f"taskset -c 0-{max(int(quota), 1) - 1}"
            )
    if not advice and min(quota or allowed, allowed) <= 1:
        advice = (
            "the device and the program share one processor, so recording the next step does "
            "not overlap the execution of this one. Two processors do that"
        )
    yield Check("processors", shown, advice)
    if (torch := sys.modules.get("torch")) is not None:
        threads = torch.get_num_threads()
        words = f"torch's ops on the CPU use {text.plural(threads, 'thread')}"
        many = "" if threads <= allowed else f"torch.set_num_threads({allowed})"
        advice = f"more threads than processors. Call {many}" if many else ""
        yield Check("threads", words, advice)


def _quota() -> float | None:
    """Return how many processors the container may use; None if it is not limited."""
    with contextlib.suppress(OSError, ValueError):
        limit, period = Path("/sys/fs/cgroup/cpu.max").read_text("utf-8").split()
        return int(limit) / int(period)
    return None


def _drawing() -> Check:
    first, *others = layout.engines()
    if first != "layered":
        found = f"laid out by {first}"
        return Check("graphs", f"{found}, else by {others[0]}" if others else found)
    return Check(
        "graphs",
        "laid out by lazyviz itself, without frames for modules",
        "install Graphviz for better drawings: apt-get install graphviz, brew install "
        "graphviz, or pip install 'lazyviz[layout]'",
    )


def _front_end(shell: Any) -> Iterator[Check]:
    kernel = getattr(shell, "kernel", None)
    if kernel is None:
        what = "none: a command line" if shell is None else "IPython in a terminal"
        yield Check("front end", f"{what}, which shows text")
        return
    version = _version_of("ipykernel") or "of another kind"
    threads = bool(getattr(kernel, "_supports_kernel_subshells", False))
    answer = "while a cell runs" if threads else "once the running cell has ended"
    yield Check(
        "front end",
        f"a notebook, ipykernel {version}; a click is answered {answer}",
        ""
        if threads
        else "to look at a cell while it runs: pip install --upgrade 'ipykernel>=7'",
    )
    if hasattr(kernel, "comm_manager"):
        yield Check("widgets", "live, through the kernel's comms; no network")
        return
    yield Check(
        "widgets",
        "the kernel has no comms, so views are static",
        "use JupyterLab, Notebook 7 or VS Code for live views",
    )


def _device(runtime: ModuleType) -> Iterator[Check]:
    import jax

    try:
        devices = jax.local_devices()
    except RuntimeError as error:
        yield Check(
            "device",
            "none",
            f"jax finds no device: {error}. Unset JAX_PLATFORMS, or set it to cpu",
            "fault",
        )
        return
    first = devices[0]
    shown = f"{runtime.device()} on {first.platform}: {first.device_kind}"
    if len(devices) > 1:
        shown += f", {len(devices)} of them"
    advice = ""
    if first.platform == "cpu" and shutil.which("nvidia-smi"):
        advice = (
            "the machine has an NVIDIA driver, and jax runs on the CPU. lazyrt is tested on "
            "the CPU; pip install 'jax[cuda13]' lets jax see the GPU"
        )
    yield Check("device", shown, advice)


def _cache(runtime: ModuleType) -> Iterator[Check]:
    folder, limit = runtime.config.cache_dir, runtime.config.max_cache_bytes
    if folder is None:
        yield Check("cache folder", "none: executables are kept in memory alone")
        return
    entries = [each for each in runtime.cached_executables() if each.on_disk]
    used = sum(entry.nbytes for entry in entries)
    shown = (
        f"{_short(folder)}: {text.plural(len(entries), 'executable')}, {text.size(used)} of at "
        f"most {text.size(limit)}"
    )
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        advice = (
            f"{_short(there)} cannot be written to, so each new process compiles all graphs "
            "again. Set lazyrt.config.cache_dir, or LAZYRT_CACHE_DIR, to a folder of yours"
        )
        yield Check("cache folder", shown, advice, "fault")
        return
    useless = [each for each in entries if not each.is_usable]
    advice = ""
    if useless:
        wasted = text.size(sum(each.nbytes for each in useless))
        advice = (
            f"{text.plural(len(useless), 'executable')} of other versions or machines take "
            f"{wasted}, and this process cannot read them. %lazy cache drop older 7d frees space"
        )
    yield Check("cache folder", shown, advice)
    free = shutil.disk_usage(there).free
    advice = ""
    if free < limit - used:
        advice = (
            f"the cache may grow by {text.size(limit - used)}, more than there is. Set "
            f"lazyrt.config.max_cache_bytes, or free space: %lazy cache drop older 7d"
        )
    yield Check("disk", f"{text.size(free)} free where the cache is", advice)


def _short(path: Path) -> str:
    with contextlib.suppress(ValueError, RuntimeError):
        return str(Path("~") / path.absolute().relative_to(Path.home()))
    return str(path)


def _memory(runtime: ModuleType) -> Check:
    from lazyrt.tools import available_memory

    now = runtime.status()
    live = (
        f"{text.plural(now.live_tensors, 'live tensor')}, {text.size(now.live_bytes)}"
    )
    room = available_memory()
    if room is None:
        return Check(
            "memory",
            f"{live}; room is not known",
            "a step that does not fit ends the process instead of raising an error. Set "
            "lazyrt.config.max_memory_bytes to what the program may take",
        )
    return Check("memory", f"{live}; room for {text.size(room)}")


def _settings(runtime: ModuleType) -> Iterator[Check]:
    config = runtime.config
    costly = [
        (name, why)
        for name, (costs, why) in _COSTS.items()
        if costs(getattr(config, name))
    ]
    # Without what the environment says, which may cost speed as well.
    defaults = {
        f.name: f.default if (made := f.default_factory) is MISSING else str(made())
        for f in fields(config)
    }
    if not costly:
        yield Check("settings", "none that costs speed")
    for name, why in costly:
        value = getattr(config, name)
        set_by = config.origin(name)
        advice = f"{why}. lazyrt.config.{name} = {defaults[name]!r} undoes it"
        if set_by.startswith("environment variable"):
            variable = set_by.rpartition(" ")[2]
            advice = f"{why}. Unset {variable}, and start again"
        yield Check("setting", f"{name} = {value!r}, set by {set_by}", advice)


def _others() -> Iterator[Check]:
    """Yield what else of the process makes programs slower: flags, modes of torch and jax, tracers."""
    flags = os.environ.get("XLA_FLAGS", "").split()
    costly = [
        (flag, why)
        for flag in flags
        for start, why in _FLAGS.items()
        if flag.startswith(start)
    ]
    for flag, why in costly:
        yield Check("XLA_FLAGS", flag, f"{why}. Take it out of XLA_FLAGS")
    torch, jax = sys.modules["torch"], sys.modules["jax"]
    if torch.is_anomaly_enabled():
        yield Check(
            "torch",
            "anomaly detection is on",
            "each backward checks its values, which breaks the graph. Call "
            "torch.autograd.set_detect_anomaly(False)",
        )
    for name, why in (
        ("jax_disable_jit", "jax runs its programs op by op"),
        ("jax_debug_nans", "jax waits for each program and checks its results"),
    ):
        if getattr(jax.config, name, False):
            undo = f"jax.config.update({name!r}, False)"
            yield Check("jax", f"{name} is on", f"{why}. Call {undo}")
    if sys.gettrace() is not None or sys.getprofile() is not None:
        yield Check(
            "Python",
            "a debugger, a coverage or a profiler follows each line or call",
            "recording ops takes several times as long. Measure without it",
        )


def main(arguments: Sequence[str]) -> int:
    """Run `python -m lazyviz doctor`; return 0, or 1 where something does not work."""
    argparse.ArgumentParser(
        prog="python -m lazyviz doctor",
        description="Say what lazyviz and lazyrt find here: versions, device, cache folder, "
        "processors, memory, settings that cost speed; each with what to do. Exit status 1 "
        "where something does not work.",
    ).parse_args(arguments)
    broken: list[Check] = []
    try:
        importlib.import_module("lazyrt")
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what is to be told
        why = f"{type(error).__name__}: {error}"
        broken = [Check("lazyrt", "cannot be imported", why, "fault")]
    runtime = None if broken else session.runtime()
    found = [*broken, *checks(runtime)]
    sys.stdout.write(f"{doc(found).to_text()}\n")
    return int(any(check.advice and check.kind == "fault" for check in found))
