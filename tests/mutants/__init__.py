"""Bugs that are put into the product on purpose, to see that they are found."""
