"""BlackJAX is imported on first use, even while another thread imports it."""

import sys
import threading
from importlib import import_module

from modicum.kernels.blackjax_modules import _Module, windows


def test_a_part_is_waited_for_while_all_of_it_is_imported_in_a_thread(tmp_path, monkeypatch):
    """The package's submodules use names from its first lines, like BlackJAX's."""
    part = tmp_path / "slowly_imported" / "part"
    part.mkdir(parents=True)
    whole = "import time\ntime.sleep(0.2)\nbase = 42\nfrom slowly_imported.part import inner\n"
    (part.parent / "__init__.py").write_text(whole)
    (part / "__init__.py").write_text("")
    (part / "inner.py").write_text("from slowly_imported import base\nanswer = base\n")
    monkeypatch.syspath_prepend(tmp_path)
    thread = threading.Thread(target=import_module, args=("slowly_imported",))
    thread.start()
    thread.join(0.05)
    try:
        assert _Module("slowly_imported.part.inner").answer == 42
    finally:
        thread.join()
        for name in [name for name in sys.modules if name.startswith("slowly_imported")]:
            del sys.modules[name]


def test_what_is_used_of_it_is_there():
    assert len(windows.build_schedule(20)) == 20
