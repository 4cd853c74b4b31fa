"""The command line, run in this process."""

from typer.testing import CliRunner

from modicum.cli import app


def run(*arguments):
    """Run a command; what it printed and its exit code are in the result."""
    return CliRunner().invoke(app, [str(a) for a in arguments])


def done(*arguments):
    """Run a command that must end well."""
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result


def failed(*arguments):
    """Run a command that must end in one sentence on standard error, code 1 and no traceback."""
    result = run(*arguments)
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == 1, result.output
    said = [line for line in result.stderr.splitlines() if not line.startswith("modicum: ")]
    assert len(said) == 1, result.stderr  # apart from the lines about phases
    assert said[0].startswith("Error: ")
    return said[0]
