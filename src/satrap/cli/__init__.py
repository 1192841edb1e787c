"""The command `satrap`. Heavy modules are imported inside the commands, so that help is instant."""

from satrap.cli.main import main, satrap

__all__ = ["main", "satrap"]
