"""`python -m satrap.cli`: the command where no `satrap` is on the path."""

from satrap.cli import main

main()
