"""Compiled loops on disk, which a later process loads without tracing them again.

JAX's own disk cache saves compilation. Its key is the lowered function, so a second process still
traces and lowers it, which takes longer than loading the result. If that cache is enabled, loops
are stored next to it, with everything the trace depends on as their key: the kernel and all its
settings, shapes and types of the arguments, versions, JAX's settings, the processor, and the files
of this package. A kernel that contains anything from outside this package and JAX (a user-defined
model, prior or design) is not stored, since it may depend on anything.

Loading compiled code runs whatever its author wrote, and JAX unpickles it besides, so no format of
ours could make it safe. Files are therefore read only if nobody but this user (or root) can have
written them, and if their checksum shows that they are intact.

Nothing here can make a run fail: a loop that cannot be stored or read is traced as usual. If you
patch functions of this package at run time, set the environment variable MODICUM_KEEP_COMPILED to
0, since no file contains the patches.
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
from typing import Any, NamedTuple, TypeAlias

import jax

from modicum.progress import logger
from modicum.runtime import (
    FASTEST_COMPILE,
    Compiled,
    Pytree,
    on_release,
    refuse_forked,
    usable_options,
)

Executable: TypeAlias = Callable[..., Pytree]
TRUSTED = {"modicum", "jax", "jaxlib", "numpy", "blackjax", "builtins", "collections", "functools"}
SWITCH = "MODICUM_KEEP_COMPILED"
MOST_FILES = 200  # about 100 MB; older files are removed
LAYOUT = "checksum, content"  # of each file, in the names of code: code of another layout is apart
CHECKSUM = 20  # bytes
_loaded: dict[str, Executable] = {}
_traced: set[str] = set()  # keys of the loops that this process has traced itself
on_release(_loaded.clear)
on_release(_traced.clear)


def get_ready() -> None:
    """Do in a thread what compiling needs and no shape changes, while the caller makes passes."""
    refuse_forked()  # the thread would wait forever, and keep the process from ending

    def prepare() -> None:
        usable_options(FASTEST_COMPILE)  # tested ahead, while there is time
        if _folder() is not None:
            _surroundings()
            _sources()

    threading.Thread(target=prepare).start()


def stored(*keys: str | None) -> list[Executable] | None:
    """Load the loops that an earlier process compiled for these keys; None if any is missing.

    None, too, if this process has traced one of them before: JAX has it in memory.
    """
    folder = _folder()
    if folder is None:
        return None
    needed = [key for key in keys if key is not None and key not in _traced]
    if len(needed) < len(keys) or not all((folder / key).exists() for key in needed):
        return None
    if "blackjax" in sys.modules:  # wait for a thread that imports it: states have its types
        import_module("blackjax")
    try:
        with ThreadPoolExecutor() as threads:
            return [*threads.map(lambda key: _loaded.get(key) or _read(folder, key), needed)]
    except Exception as error:  # another version, damaged, not readable: traced as usual
        logger.info("compiled code in %s could not be used: %s", folder, error)
        return None


def _read(folder: Path, key: str) -> Executable:
    from jax.experimental.serialize_executable import deserialize_and_load

    if not _is_ours(folder):
        raise PermissionError(f"others can write to {folder}")
    name, *trees = pickle.loads(_get(folder / key))
    _loaded[key] = deserialize_and_load(_get(folder / name), *trees)
    return _loaded[key]


class NewProgram(NamedTuple):
    """A program that this process has traced and compiled."""

    key: str | None
    lowered: jax.stages.Lowered
    compiled: jax.stages.Compiled
    # Whether it was compiled just now. Code that JAX has loaded from its own cache cannot be
    # serialised again, since the result does not run; but code that an earlier process wrote may
    # serve this key too.
    fresh: bool


def keep(programs: Sequence[NewProgram]) -> None:
    """Store programs for later processes, in a thread."""
    folder = _folder()
    new = [
        program for program in programs if program.key is not None and program.key not in _traced
    ]
    if folder is None or not new:
        return
    _traced.update(program.key for program in new if program.key is not None)
    made_for = repr((_settings(), _surroundings()))
    threading.Thread(target=_name_and_write, args=(folder, new, made_for)).start()


def _name_and_write(folder: Path, programs: Sequence[NewProgram], made_for: str) -> None:
    """Name code by the compiler's input, and write what is fresh or known."""
    for key, lowered, compiled, fresh in programs:
        text = lowered.as_text() + made_for + LAYOUT
        name = f"code-{hashlib.blake2b(text.encode(), digest_size=20).hexdigest()}"
        if key is not None and (fresh or (folder / name).exists()):
            _write(folder, key, name, compiled)


def _write(folder: Path, key: str, name: str, compiled: jax.stages.Compiled) -> None:
    """Write the code, unless it is there already, and a file that maps the key to it."""
    try:
        from jax.experimental.serialize_executable import serialize

        folder.mkdir(parents=True, exist_ok=True)
        if not _is_ours(folder):
            folder.chmod(0o700)  # fails if it belongs to somebody else
        if (folder / name).exists():
            os.utime(folder / name)  # mark as recent, since the oldest are removed
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
    """Write a file atomically, with its checksum, for its owner alone."""
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(_checksum(content) + content)
    Path(file.name).replace(path)


def _get(path: Path) -> bytes:
    """Read a file that `_put` wrote; remove it if it is damaged."""
    with open(path, "rb") as file:
        if not _is_ours(file.fileno()):
            raise PermissionError(f"others can write {path.name}")
        checksum, content = file.read(CHECKSUM), file.read()
    if checksum != _checksum(content):
        path.unlink(missing_ok=True)  # to be written again
        raise ValueError(f"{path.name} is damaged")
    return content


def _checksum(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=CHECKSUM).digest()


def _is_ours(place: Path | int) -> bool:
    """Whether only this user and root can write a file or folder, as far as the system knows."""
    if not hasattr(os, "geteuid"):  # not a POSIX system
        return True
    status = os.stat(place)
    return status.st_uid in (0, os.geteuid()) and not status.st_mode & 0o022


def key_of(
    function: Compiled[..., Pytree], static: tuple[object, ...], arguments: tuple[Pytree, ...]
) -> str | None:
    """Return a key for the trace of a function; None if its dependencies cannot be known."""
    if _folder() is None:
        return None
    leaves, structure = jax.tree.flatten(arguments)
    shapes = [jax.typeof(leaf) for leaf in leaves]
    try:
        parts = (static, structure, [(s.shape, str(s.dtype), s.weak_type) for s in shapes])
        digest = hashlib.blake2b(_pickled(parts), digest_size=20)
    except Exception:  # functions of the user, and other objects that cannot be identified
        return None
    name = function.__name__
    digest.update(repr((name, _settings(), _surroundings(), _sources())).encode())
    return f"{name}-{digest.hexdigest()}"


class _Pickler(pickle.Pickler):
    """Refuses objects from modules that the key does not cover."""

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
    """Return the folder for loops: in JAX's cache, if it is enabled and on a local disk."""
    name = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    switched_on = jax.config.jax_enable_compilation_cache  # type: ignore[attr-defined]
    if not name or "://" in name or not switched_on or os.environ.get(SWITCH) == "0":
        return None
    if jax.default_backend() != "cpu" or jax.device_count() > 1:  # one CPU device only
        return None
    return Path(name) / "modicum"


def _settings() -> list[tuple[str, str]]:
    """Return JAX's current settings, without those of its cache and of its output."""
    beside = ("cache", "log", "dump", "traceback", "pprint")
    names = (name for name in jax.config.values if not any(word in name for word in beside))
    return [(name, repr(getattr(jax.config, name, None))) for name in sorted(names)]


@cache
def _surroundings() -> tuple[str, ...]:
    """Return versions, the processor and the compiler's flags."""
    versions = [version(name) for name in ("jax", "jaxlib", "numpy", "blackjax")]
    device = jax.devices()[0]
    machine = (device.platform, device.device_kind, platform.machine(), _processor())
    return (sys.version, *versions, *machine, os.environ.get("XLA_FLAGS", ""))


def _processor() -> str:
    """Return the processor's features, for which code was compiled."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not on Linux
        return platform.processor()
    words = ("flags", "features", "model name", "cpu part")
    return repr(sorted({line for line in lines if line.lower().startswith(words)}))


@cache
def _sources() -> str:
    """Hash all files of this package by content, since some installers reset their times."""
    digest = hashlib.blake2b(digest_size=20)
    package = Path(__file__).parents[1]
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package)}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()
