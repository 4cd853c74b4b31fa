"""Scripts in processes of their own, forked from one that has imported Modicum.

The import takes two seconds of CPU time, more than most of these scripts. A process that has
imported JAX but not used it may be forked. Tests of the import or of the command start Python.
"""

import multiprocessing
import os
import sys

CONTEXT = multiprocessing.get_context(
    "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
)


class Script:
    """A running script, with those methods of `subprocess.Popen` that tests need."""

    def __init__(self, code, *arguments):
        CONTEXT.set_forkserver_preload(["modicum"])
        (stdout, to_stdout), (stderr, to_stderr) = (CONTEXT.Pipe(duplex=False) for _ in range(2))
        self.stdout, self.stderr = (os.fdopen(os.dup(p.fileno())) for p in (stdout, stderr))
        self.process = CONTEXT.Process(
            target=_run, args=(code, [str(a) for a in arguments], to_stdout, to_stderr), daemon=True
        )
        self.process.start()
        for end in (stdout, stderr, to_stdout, to_stderr):
            end.close()
        self.pid, self.kill, self.terminate = (
            getattr(self.process, name) for name in ("pid", "kill", "terminate")
        )

    @property
    def returncode(self):
        """Exit code, minus the number of the signal that ended the process; None if it runs."""
        return self.process.exitcode

    def wait(self, seconds=60):
        """Wait for the end; return the exit code."""
        self.process.join(seconds)
        return self.returncode

    def __enter__(self):
        return self

    def __exit__(self, *_):
        """Kill the process if it still runs."""
        self.kill()
        self.process.join()
        self.stdout.close()
        self.stderr.close()


def _run(code, arguments, stdout, stderr):
    os.dup2(stdout.fileno(), 1)
    os.dup2(stderr.fileno(), 2)
    sys.stdout, sys.stderr = (os.fdopen(os.dup(number), "w", buffering=1) for number in (1, 2))
    sys.argv = ["-c", *arguments]
    exec(compile(code, "<script>", "exec"), {"__name__": "__main__"})
