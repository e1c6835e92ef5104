"""`python -m deelog_connector`: the command `deelog`, by the interpreter that is named."""

from deelog_connector.cli import main

main()
