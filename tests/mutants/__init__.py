"""Mutation tests: bugs are put into the product on purpose, to check that they are found."""
