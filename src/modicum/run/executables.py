"""Compiled loops that a later process takes from disk without tracing them again.

JAX's own cache on disk spares the compiler. Its key is the function as the compiler sees it, so a
second process still traces and lowers all of it, which takes longer than loading the result. Where
that cache is switched on, a loop is kept beside it by what the trace depends on: the kernel and all
its settings, shapes and types of the arguments, versions, JAX's settings, the processor, and the
files of this package. A kernel with anything in it that is not of this package or of JAX (a model
of one's own, a prior, a design) is not kept, since nobody knows what else it depends on.

Nothing here can fail a run: what cannot be stored or read is traced as ever. Who patches functions
of this package while it runs sets the environment variable MODICUM_KEEP_COMPILED to 0, since
patches are in no file.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import platform
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

import jax

from modicum.progress import logger
from modicum.runtime import Compiled, Pytree, on_release

__all__ = ["Executable", "keep", "key_of", "stored"]

Executable: TypeAlias = Callable[..., Pytree]
TRUSTED = {"modicum", "jax", "jaxlib", "numpy", "blackjax", "builtins", "collections", "functools"}
SWITCH = "MODICUM_KEEP_COMPILED"
MOST_FILES = 200  # about 100 MB; the oldest are removed
_loaded: dict[str, Executable] = {}
_traced: set[str] = set()  # keys of what this process has traced itself
on_release(_loaded.clear)
on_release(_traced.clear)


def stored(*keys: str | None) -> list[Executable] | None:
    """What an earlier process compiled for these keys; None if any is missing, or not needed.

    What this process has traced before is not needed: JAX has it in memory.
    """
    folder = _folder()
    if folder is None:
        return None
    needed = [key for key in keys if key is not None and key not in _traced]
    if len(needed) < len(keys) or not all((folder / key).exists() for key in needed):
        return None
    if "blackjax" in sys.modules:  # by a thread that may be at it still: states are of its types
        import_module("blackjax")
    try:
        with ThreadPoolExecutor() as threads:
            return [*threads.map(lambda key: _loaded.get(key) or _read(folder, key), needed)]
    except Exception as error:  # another version's, damaged, not readable: traced as ever
        logger.info("compiled code in %s could not be used: %s", folder, error)
        return None


def _read(folder: Path, key: str) -> Executable:
    from jax.experimental.serialize_executable import deserialize_and_load

    name, *trees = pickle.loads((folder / key).read_bytes())
    _loaded[key] = deserialize_and_load((folder / name).read_bytes(), *trees)
    return _loaded[key]


def keep(
    key: str | None, function: Compiled[..., Pytree], arguments: Sequence[Pytree], fresh: bool
) -> None:
    """Keep what this process has traced for these arguments, for others.

    Parameters
    ----------
    fresh
        Whether the compiler made it just now. Code that JAX has read from its own cache cannot be
        written again, since what is then in the file does not run; but the code that an earlier
        process wrote may serve for this key too.
    """
    folder = _folder()
    if key is None or folder is None or key in _traced:
        return
    _traced.add(key)
    lowered = function.lower(*arguments)  # a look-up, and so is to compile it
    made_for = repr((_settings(), _surroundings()))
    what = (folder, key, lowered, lowered.compile(), made_for, fresh)
    threading.Thread(target=_name_and_write, args=what).start()  # while chains run


def _name_and_write(
    folder: Path,
    key: str,
    lowered: jax.stages.Lowered,
    compiled: jax.stages.Compiled,
    made_for: str,
    fresh: bool,
) -> None:
    """Name the code by what the compiler was given, and write it if that can be done."""
    text = lowered.as_text() + made_for
    name = f"code-{hashlib.blake2b(text.encode(), digest_size=20).hexdigest()}"
    if fresh or (folder / name).exists():
        _write(folder, key, name, compiled)


def _write(folder: Path, key: str, name: str, compiled: jax.stages.Compiled) -> None:
    """Write the code, unless it is there, and by which key it is found."""
    try:
        from jax.experimental.serialize_executable import serialize

        folder.mkdir(parents=True, exist_ok=True)
        if (folder / name).exists():
            os.utime(folder / name)  # the oldest are removed
        else:
            _put(folder / name, serialize(compiled)[0])
        trees = jax.tree.structure(compiled.args_info), compiled.out_tree
        _put(folder / key, pickle.dumps((name, *trees)))
        newest = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in newest[MOST_FILES:]:
            path.unlink(missing_ok=True)
    except Exception as error:  # a full disk, a kind of code that cannot be written
        logger.info("compiled code was not kept in %s: %s", folder, error)


def _put(path: Path, content: bytes) -> None:
    """Write a file that others never see half written."""
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(content)
    Path(file.name).replace(path)


def key_of(
    function: Compiled[..., Pytree], static: tuple[object, ...], arguments: tuple[Pytree, ...]
) -> str | None:
    """A name for the trace of a function; None where it depends on more than can be known."""
    if _folder() is None:
        return None
    leaves, structure = jax.tree.flatten(arguments)
    shapes = [jax.typeof(leaf) for leaf in leaves]
    try:
        parts = (static, structure, [(s.shape, str(s.dtype), s.weak_type) for s in shapes])
        digest = hashlib.blake2b(_pickled(parts), digest_size=20)
    except Exception:  # functions of the user's, and whatever else has no name of its own
        return None
    name = function.__name__
    digest.update(repr((name, _settings(), _surroundings(), _sources())).encode())
    return f"{name}-{digest.hexdigest()}"


class _Pickler(pickle.Pickler):
    """Refuses what is not of modules that the key covers."""

    def reducer_override(self, obj: object) -> Any:  # as pickle has it
        kind = obj if isinstance(obj, type) or callable(obj) else type(obj)
        module = getattr(kind, "__module__", None) or ""
        if module.partition(".")[0] not in TRUSTED:
            raise pickle.PicklingError(module)
        return NotImplemented


def _pickled(value: object) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer).dump(value)
    return buffer.getvalue()


def _folder() -> Path | None:
    """Where loops are kept: in JAX's cache, if it has one on this machine's disks."""
    name = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    switched_on = jax.config.jax_enable_compilation_cache  # type: ignore[attr-defined]
    if not name or "://" in name or not switched_on or os.environ.get(SWITCH) == "0":
        return None
    if jax.default_backend() != "cpu" or jax.device_count() > 1:  # whose code is more than a file
        return None
    return Path(name) / "modicum"


def _settings() -> list[tuple[str, str]]:
    """JAX's settings here and now; not those of its cache, and of what it prints."""
    beside = ("cache", "log", "dump", "traceback", "pprint")
    names = (name for name in jax.config.values if not any(word in name for word in beside))
    return [(name, repr(getattr(jax.config, name, None))) for name in sorted(names)]


@cache
def _surroundings() -> tuple[str, ...]:
    """Versions, the processor and the compiler's flags."""
    versions = [version(name) for name in ("jax", "jaxlib", "numpy", "blackjax")]
    device = jax.devices()[0]
    machine = (device.platform, device.device_kind, platform.machine(), _processor())
    return (sys.version, *versions, *machine, os.environ.get("XLA_FLAGS", ""))


def _processor() -> str:
    """What the processor can do, for which code was compiled."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # no Linux
        return platform.processor()
    words = ("flags", "features", "model name", "cpu part")
    return repr(sorted({line for line in lines if line.lower().startswith(words)}))


@cache
def _sources() -> str:
    """All files of this package, by their contents: some installers give all of them one time."""
    digest = hashlib.blake2b(digest_size=20)
    package = Path(__file__).parents[1]
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package)}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()
